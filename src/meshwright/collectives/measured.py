"""Curves that were fitted to measurements: the tables of ``catalog/network`` and files of the same form.

name = "h100-sxm"
[[curve]]
op = "all_gather"
algorithm = "ring"
...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from meshwright.collectives.curve import Curve
from meshwright.errors import InputError, Mistake, Mistakes, did_you_mean
from meshwright.spec.files import parse_toml, read_text
from meshwright.spec.tables import Table

FOLDER = Path(__file__).parent.parent / "catalog" / "network"


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """One curve and where it comes from.

    Attributes:
        nodes: how many nodes the measured groups spanned; ranks: the group sizes; payload_bytes: smallest and largest.
        median_error: of the points it was fitted to; left_out_error: median with each size left out in turn, None if unknown.
    """

    op: str
    algorithm: str
    nodes: int
    ranks: tuple[int, ...]
    payload_bytes: tuple[float, float]
    curve: Curve
    points: int
    median_error: float
    left_out_error: float | None
    source: str


def catalog_names() -> tuple[str, ...]:
    """Networks with measured curves."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


def catalog_curves(name: str) -> tuple[MeasuredCurve, ...]:
    """The measured curves of a network of the catalog. Raises InputError for a name that is not there."""
    names = catalog_names()
    if name not in names:
        raise InputError([Mistake("catalog", "network", name, ", ".join(names), did_you_mean(name, names), "is not in the catalog")])
    file = FOLDER / f"{name}.toml"
    return read_curves(read_text(file, "a network table"), str(file))


def read_curves(text: str, file: str) -> tuple[MeasuredCurve, ...]:
    """Curves from the text of a table. Raises InputError with all mistakes; ``file`` is how they name it."""
    values = parse_toml(text, file)
    with Mistakes.of(file) as mistakes:
        table = Table(values, mistakes)
        table.text("name")
        curves = tuple(_read_curve(row) for row in table.tables("curve"))
        table.refuse_unread()
    return curves


def _read_curve(row: Table) -> MeasuredCurve:
    op, algorithm = row.text("op"), row.text("algorithm")
    nodes = row.integer("nodes", 1)
    ranks = row.integers("ranks", low=2)
    sizes = row.integers("payload_bytes", low=1, high=1 << 50)
    if row.sound("ranks") and not ranks:
        row.note("ranks", "the group sizes that were measured", problem="is empty")
    if row.sound("payload_bytes") and len(sizes) != 2:
        row.note("payload_bytes", "[smallest, largest], in bytes")
    curve = Curve(
        launch_s=row.number("launch_s", low=0.0),
        step_latency_s=row.number("step_latency_s", low=0.0),
        bandwidth_bytes_per_s=row.number("bandwidth_bytes_per_s", above=0.0),
        half_bytes=row.number("half_bytes", low=0.0),
        copy_bandwidth_bytes_per_s=row.number("copy_bandwidth_bytes_per_s", math.inf, above=0.0),
    )
    points = row.integer("points", 0)
    median_error, left_out_error = row.number("median_error", low=0.0), row.number("left_out_error", None, low=0.0)
    source = row.text("source", "")
    row.refuse_unread()
    smallest, largest = sizes if len(sizes) == 2 else (0, 0)
    return MeasuredCurve(
        op=op, algorithm=algorithm, nodes=nodes, ranks=ranks, payload_bytes=(float(smallest), float(largest)), curve=curve,
        points=points, median_error=median_error, left_out_error=left_out_error, source=source,
    )  # fmt: skip
