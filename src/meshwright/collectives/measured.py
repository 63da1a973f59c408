"""Curves that were fitted to measurements: the tables of ``catalog/network`` and files of the same form.

name = "h100-sxm"
[[curve]]
op = "all_gather"
algorithm = "ring"
...
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from meshwright.collectives.curve import Curve
from meshwright.errors import InputError, Mistake, Mistakes

FOLDER = Path(__file__).parent.parent / "catalog" / "network"
_CONSTANTS = tuple(field.name for field in fields(Curve))


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
    if name not in catalog_names():
        raise InputError([Mistake("", "network", name, ", ".join(catalog_names()), problem="is not in the catalog")])
    file = FOLDER / f"{name}.toml"
    return read_curves(file.read_text(encoding="utf-8"), file.name)


def read_curves(text: str, file: str) -> tuple[MeasuredCurve, ...]:
    """Curves from the text of a table. Raises InputError with all mistakes; ``file`` is how they name it."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError([Mistake(file, "", None, "TOML", problem=f"cannot be read: {error}")]) from error
    found: list[MeasuredCurve] = []
    with Mistakes.of(file) as mistakes:
        rows = table.get("curve", [])
        if not isinstance(rows, list) or not rows:
            mistakes.add("curve", None, "one [[curve]] or more", problem="is missing")
            rows = []
        for index, row in enumerate(rows):
            curve = _read_curve(row, f"curve[{index}]", mistakes)
            if curve is not None:
                found.append(curve)
    return tuple(found)


def _read_curve(row: Mapping[str, object], key: str, mistakes: Mistakes) -> MeasuredCurve | None:
    before = len(mistakes.found)
    constants = {name: _number(row, name, key, mistakes, math.inf if name == "copy_bandwidth_bytes_per_s" else None) for name in _CONSTANTS}
    known = {*_CONSTANTS, "op", "algorithm", "nodes", "ranks", "payload_bytes", "points", "median_error", "left_out_error", "source"}
    for name in row:
        if name not in known:
            mistakes.add(f"{key}.{name}", row[name], ", ".join(sorted(known)), problem="is not a known key")
    ranks, sizes = row.get("ranks"), row.get("payload_bytes")
    if not (isinstance(ranks, list) and ranks and all(isinstance(n, int) and n > 1 for n in ranks)):
        mistakes.add(f"{key}.ranks", ranks, "a list of group sizes of 2 or more")
    if not (isinstance(sizes, list) and len(sizes) == 2 and all(isinstance(n, int | float) and n > 0 for n in sizes)):
        mistakes.add(f"{key}.payload_bytes", sizes, "[smallest, largest], in bytes")
    for name in ("op", "algorithm"):
        if not isinstance(row.get(name), str):
            mistakes.add(f"{key}.{name}", row.get(name), "a text")
    median = _number(row, "median_error", key, mistakes, None)
    if len(mistakes.found) > before:
        return None
    assert isinstance(ranks, list) and isinstance(sizes, list)
    left_out = _number(row, "left_out_error", key, mistakes, math.nan)
    return MeasuredCurve(
        op=str(row["op"]),
        algorithm=str(row["algorithm"]),
        nodes=int(_number(row, "nodes", key, mistakes, 1)),
        ranks=tuple(ranks),
        payload_bytes=(float(sizes[0]), float(sizes[1])),
        curve=Curve(**constants),
        points=int(_number(row, "points", key, mistakes, 0)),
        median_error=median,
        left_out_error=None if math.isnan(left_out) else left_out,
        source=str(row.get("source", "")),
    )


def _number(row: Mapping[str, object], name: str, key: str, mistakes: Mistakes, absent: float | None) -> float:
    value = row.get(name, absent)
    positive = name.endswith("bandwidth_bytes_per_s")
    good = isinstance(value, int | float) and not isinstance(value, bool) and not value < 0 and not (positive and value == 0)
    if not good:
        mistakes.add(f"{key}.{name}", value, "a positive number" if positive else "a number, 0 or more")
        return math.nan
    assert isinstance(value, int | float)
    return float(value)
