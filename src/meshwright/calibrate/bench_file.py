"""Read what ``meshwright.runtime.bench_collectives`` writes: a header line, then one JSON object per measured point."""

from __future__ import annotations

import json

from meshwright.calibrate.network import Point
from meshwright.errors import Mistakes
from meshwright.spec.tables import LARGEST_SIZE, Table

SCHEMA = "meshwright-bench-collectives/1"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def parse(text: str, file: str) -> list[Point]:
    """The points of a file. Raises InputError with the line and reason of everything that is wrong."""
    points: list[Point] = []
    with Mistakes.of(file) as mistakes:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        for position, (number, line) in enumerate(lines):
            table = _object(line, number, mistakes)
            if table is None:
                continue
            if position == 0:
                table.choice("schema", [SCHEMA])
                continue
            point = _point(table, f"{file}:{number}")
            if point is not None:
                points.append(point)
        if not points and not mistakes.found:
            hint = "write it with torchrun -m meshwright.runtime.bench_collectives"
            mistakes.add("", None, f"a {SCHEMA} header, then points", hint, "has no measured points")
    return points


def _object(line: str, number: int, mistakes: Mistakes) -> Table | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:  # thousands of brackets
        mistakes.add(f"line {number}", line, "one JSON object", problem=f"cannot be read: {error}")
        return None
    if not isinstance(values, dict):
        mistakes.add(f"line {number}", line, "one JSON object")
        return None
    return Table(values, mistakes, f"line {number}: ")


def _point(table: Table, where: str) -> Point | None:
    before = len(table.mistakes.found)
    op = table.choice("op", OPS)
    ranks, nodes = table.integer("ranks", low=2), table.integer("nodes", 1)
    payload_bytes = table.integer("payload_bytes", high=LARGEST_SIZE**2)
    time_s = table.number("time_s", above=0.0, unit="seconds: 20 us is 2e-5")
    table.refuse_unread()
    if len(table.mistakes.found) > before:
        return None
    return Point(op, ranks, payload_bytes, time_s, nodes, where)
