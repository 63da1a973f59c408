"""The rows of ``explain`` as text: a table with two lines or three per row, and one row in full."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.explain.rows import ExplainedRow, Explanation
from meshwright.explain.words import in_runs
from meshwright.render.text import Column, table
from meshwright.render.text import facts as aligned
from meshwright.units import format_count, format_memory, format_seconds, format_traffic

PLACES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Coordinates in the order of the headline."""


def rows_text(found: Explanation) -> str:
    """The listing: name and phase, the tensor before and after with its local shapes, what is done and why, how long and how often."""
    columns: list[Column | str] = [
        Column("#", right=True, fold=False), Column("module, phase", fold=False),
        Column("tensor, and what this rank has of it", fold=False),
        "does, because", Column("each", right=True, fold=False),
    ]  # fmt: skip
    width = max((len(text) for row in found.rows for text in (row.before, row.after) if text), default=0)
    cells = [
        [row.number, _lines(row.name, row.phase), _tensors(row, width), _lines(does(row), row.why),
         _lines(format_seconds(row.each_s), f"x {row.times:,}")]
        for row in found.rows
    ]  # fmt: skip
    return table(headline(found), columns, cells, notes=["", *_notes(found)])


def headline(found: Explanation) -> str:
    """Who is looked at."""
    places = ", ".join(f"{axis} {found.coordinates[axis]}" for axis in PLACES if getattr(found.layout, axis) > 1)
    layers = in_runs(found.layers) or "none"
    return f"Rank {found.rank} of {found.layout.world_size} ({places or 'alone'}; layers {layers}) under {found.layout}"


def does(row: ExplainedRow) -> str:
    """``all_gather over tp (8, nvlink): 134 MB``, ``172B flops``, ``moves 64 MiB``."""
    if row.op is not None:
        peers = "from" if row.op == "recv" else "to" if row.op == "send" else "over"
        return f"{row.op} {peers} {row.axis} ({row.ranks}, {row.tier}): {format_traffic(row.payload_bytes)}"
    if row.flops:
        return f"{row.row.kind.replace('_', ' ')}: {format_count(row.flops)} flops"
    return f"reads and writes {format_memory(row.row.read_bytes + row.row.write_bytes)}"


def _tensors(row: ExplainedRow, width: int) -> str:
    """One line where nothing changes, else two with an arrow; a weight's gradient has no second tensor to show."""
    before, after = ((text or "").ljust(width) + f"  {shape_text(shape)}" for text, shape in _both(row))
    if row.before == row.after or row.after is None:
        return f"   {before}".rstrip()
    return _lines(f"   {before}".rstrip(), f"-> {after}".rstrip())


def _both(row: ExplainedRow) -> list[tuple[str | None, tuple[int, ...] | None]]:
    return [(row.before, row.before_shape), (row.after, row.after_shape)]


def shape_text(shape: tuple[int, ...] | None) -> str:
    """``[1, 8192, 8192]``."""
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"


def _lines(*parts: str) -> str:
    return "\n".join(parts)


def _notes(found: Explanation) -> list[str]:
    busy_s = sum(row.times * row.each_s for row in found.rows)
    count = f"{len(found.rows)} row{'s' if len(found.rows) != 1 else ''}"
    return [f"{count}, {format_seconds(busy_s)} a step, if nothing is hidden behind anything; m = {found.micro_batches}"]


def row_text(found: Explanation, facts: Sequence[tuple[str, str]]) -> str:
    """One row in full."""
    row = found.rows[0]
    where = "" if row.layer is None else ", multi-token prediction" if row.part == "mtp" else f", layer {row.layer}"
    title = f"Row {row.number}: {row.name}{where}\n{headline(found)}"
    return "\n".join([title, "", *aligned(facts)])
