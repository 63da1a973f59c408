"""Curves that were fitted to measurements: the tables of ``catalog/network``, files of the same form, and ``curves`` of a tier.

name = "h100-sxm"
[[curve]]
op = "all_gather"
algorithm = "ring"
...
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from meshwright.catalog import ROOT as CATALOG
from meshwright.errors import InputError, Mistake, Mistakes, did_you_mean
from meshwright.spec.files import parse_toml, read_text
from meshwright.spec.network import MeasuredCurve
from meshwright.spec.tables import Table

__all__ = ["CURVES", "catalog_curves", "catalog_networks", "read_curve", "read_curves"]

FOLDER = CATALOG / "network"

CURVES = {
    "all_reduce": ("ring", "in_switch"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "all_to_all": ("pairwise",),
}
"""The algorithms of each op that a curve can be of: those that NCCL runs inside a node."""


def catalog_networks() -> tuple[str, ...]:
    """Networks with measured curves."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


@cache
def catalog_curves(name: str) -> tuple[MeasuredCurve, ...]:
    """The measured curves of a network of the catalog. Raises InputError for a name that is not there."""
    names = catalog_networks()
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
        curves = tuple(read_curve(row) for row in table.tables("curve"))
        table.refuse_unread()
    return curves


def read_curve(row: Table) -> MeasuredCurve:
    """One curve; its mistakes are noted in the table."""
    op = row.choice("op", CURVES)
    algorithm = row.choice("algorithm", CURVES.get(op, ("ring",)))
    nodes = row.integer("nodes", 1)
    ranks = row.integers("ranks", low=2)
    sizes = row.integers("payload_bytes", low=1, high=1 << 50)
    if row.sound("ranks") and not ranks:
        row.note("ranks", "the group sizes that were measured", problem="is empty")
    if row.sound("payload_bytes") and len(sizes) != 2:
        row.note("payload_bytes", "[smallest, largest], in bytes")
    curve = MeasuredCurve(
        op=op, algorithm=algorithm, nodes=nodes, ranks=ranks, payload_bytes=sizes,
        launch_s=row.number("launch_s", low=0.0),
        step_latency_s=row.number("step_latency_s", low=0.0),
        bandwidth_bytes_per_s=row.number("bandwidth_bytes_per_s", above=0.0),
        half_bytes=row.number("half_bytes", low=0.0),
        copy_bandwidth_bytes_per_s=row.number("copy_bandwidth_bytes_per_s", None, above=0.0),
        points=row.integer("points", 0),
        median_error=row.number("median_error", low=0.0),
        left_out_error=row.number("left_out_error", None, low=0.0),
        source=row.text("source", "", multiline=True),
    )  # fmt: skip
    row.refuse_unread()
    return curve


def network_of(table: Table, spans_nodes: bool) -> tuple[str, tuple[MeasuredCurve, ...]]:
    """(name, curves) of a tier's table: its own ``curves``, else those of the ``network`` that it names.

    The name is one of the catalog, or the path of a table of the same form, from the folder of the cluster file. Only what was
    measured inside one unit of the tier counts: one node for the innermost tier, several for the others.
    """
    if "curves" in table:
        return table.text("network", ""), tuple(read_curve(row) for row in table.tables("curves"))
    if "network" not in table:
        return "", ()
    name = table.text("network")
    if not table.sound("network"):
        return "", ()
    try:
        curves = _curves_named(name, Path(table.mistakes.file).parent)
    except InputError as error:
        table.mistakes.found += error.mistakes
        return name, ()
    chosen = tuple(curve for curve in curves if (curve.nodes > 1) == spans_nodes)
    if not chosen:
        where = "several nodes" if spans_nodes else "one node"
        table.note("network", f"a network measured on {where}", problem="has no curve for this tier")
    return name, chosen


def _curves_named(name: str, folder: Path) -> tuple[MeasuredCurve, ...]:
    if not name.lower().endswith(".toml"):
        return catalog_curves(name)
    file = folder / name
    return read_curves(read_text(file, "a network table"), str(file))
