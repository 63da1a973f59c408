"""One line per axis: what it cuts, which collectives it costs a rank in a step, over which network, and for how long.

Calls and bytes are sums over the rows of explain/rows.py; exposed seconds are those of the rank's stage (step_time.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.boundaries import representatives
from meshwright.errors import InputError, Mistake
from meshwright.explain.cuts import what_is_cut
from meshwright.explain.listing import Listed, StageListing
from meshwright.ledger.rows import Row
from meshwright.mesh import Mesh, strides
from meshwright.priced import PART_OF_AXIS, Priced
from meshwright.spec import names
from meshwright.spec.layout import Layout
from meshwright.step_time import Parts, stage_parts

LINES = ("dp", "tp", "sp", "cp", "ep", "pp", "vocab", "other")
"""The lines, in order. "other" has the scalars of the whole job: token count and gradient norm."""


@dataclass(frozen=True)
class AxisLine:
    """What one axis costs one rank in one step.

    Attributes:
        degree: its ranks; 1 where the layout does not use it.
        cuts: what it divides, in letters and numbers.
        collectives: calls per step by name. calls: all of them.
        payload_bytes: tensors passed in (a recv passes none); wire_bytes: what the rank sends.
        tier: outermost network tier that its groups span, "" without collectives.
        exposed_s: seconds of a step in which the rank waits for it, as the stack overlaps it.
    """

    axis: str
    degree: int
    cuts: str
    collectives: dict[str, int]
    payload_bytes: int
    wire_bytes: int
    tier: str
    exposed_s: float

    @property
    def calls(self) -> int:
        return sum(self.collectives.values())

    def as_json(self) -> dict[str, object]:
        return {**vars(self), "calls": self.calls}


@dataclass(frozen=True)
class AxisTable:
    """All lines of one rank, with the time that it computes, and waits for other stages."""

    layout: Layout
    rank: int
    stage: int
    micro_batches: int
    lines: tuple[AxisLine, ...]
    parts: Parts
    warnings: tuple[Any, ...] = ()

    def line(self, axis: str) -> AxisLine:
        return next(line for line in self.lines if line.axis == axis)

    @property
    def host_s(self) -> float:
        """What the rank waits for its host, which cannot launch the kernels of small layers as fast as they run."""
        return max(float(self.parts.other_s) - self.line("other").exposed_s, 0.0)

    def as_json(self) -> dict[str, object]:
        return {"axes": [line.as_json() for line in self.lines], "host_s": self.host_s}


@dataclass
class _Sum:
    collectives: dict[str, int] = field(default_factory=dict)
    payload_bytes: int = 0
    wire_bytes: float = 0.0
    exposed_s: float = 0.0
    axes: set[str] = field(default_factory=set)


def explain_by_axis(numbers: Priced, rank: int | None = None, warnings: Sequence[Any] = ()) -> AxisTable:
    """The table of one rank; unless one is asked for, of the first rank of the stage that is busy longest.

    Raises:
        InputError: there is no such rank.
    """
    ledger = numbers.ledger
    if rank is None:
        rank = busiest_stage(numbers) * strides(ledger.layout)["pp"]
    elif not 0 <= rank < ledger.layout.world_size:
        legal = f"0 to {ledger.layout.world_size - 1}"
        raise InputError([Mistake("command line", "--rank", rank, legal, problem=f"is not one of {ledger.layout.world_size} ranks")])
    stage = Mesh(ledger.layout).coordinates(rank)["pp"]
    listing = StageListing(ledger, stage)
    sums = _summed(numbers, listing.rows)
    parts = stage_parts(numbers, stage)
    # Collectives over tp are never hidden: each line's time is the sum of its calls. The others' parts are of one line.
    for axis in ("dp", "cp", "ep", "pp"):
        sums[axis].exposed_s = float(getattr(parts, f"{axis}_s"))
    sums["other"].exposed_s = float(numbers.scalars_s)
    lines = tuple(_line(numbers, axis, sums[axis]) for axis in LINES)
    return AxisTable(ledger.layout, rank, stage, listing.micro_batches, lines, parts, tuple(warnings))


def busiest_stage(numbers: Priced) -> int:
    """The stage whose own work takes longest, the first of equals."""
    stages = [index for index, _ in representatives(numbers)]
    return max(stages, key=lambda index: float(stage_parts(numbers, index).step_s))


def line_of(row: Row, part: str, layout: Layout) -> str:
    """The line that a collective belongs to. With sp every tp collective of a layer is there because the sequence is cut."""
    assert row.axis is not None
    if part == "step":
        return "other"
    if row.name == names.ROUTER and row.axis.startswith("dp"):  # loads of experts, summed over the data-parallel ranks
        return "ep"
    line = PART_OF_AXIS.get(row.axis, "dp")
    if line != "tp" or row.axis == "kv":
        return line
    if layout.vocab and row.name in (names.EMBEDDING, names.HEAD, names.LOSS):
        return "vocab"
    return "sp" if layout.sp else "tp"


def _summed(numbers: Priced, rows: Iterable[Listed]) -> dict[str, _Sum]:
    sums = {axis: _Sum() for axis in LINES}
    for listed in rows:
        row = listed.row
        if row.op is None or row.axis is None:
            continue
        total = sums[line_of(row, listed.part, numbers.ledger.layout)]
        total.collectives[row.op] = total.collectives.get(row.op, 0) + listed.calls
        total.payload_bytes += listed.calls * int(row.payload_bytes) * (row.op != "recv")
        total.wire_bytes += listed.calls * row.wire_bytes
        total.exposed_s += listed.calls * float(numbers.row_s(row))
        total.axes.add(row.axis)
    return sums


def _line(numbers: Priced, axis: str, total: _Sum) -> AxisLine:
    ledger, tiers = numbers.ledger, [tier.name for tier in numbers.cluster.tiers]
    spanned = [numbers.fabric.tier(name) for name in total.axes]
    return AxisLine(
        axis=axis, degree=_degree(axis, ledger.layout), cuts=what_is_cut(axis, ledger), collectives=total.collectives,
        payload_bytes=total.payload_bytes, wire_bytes=round(total.wire_bytes), tier=max(spanned, key=tiers.index, default=""),
        exposed_s=total.exposed_s,
    )  # fmt: skip


def _degree(axis: str, layout: Layout) -> int:
    degrees = {
        "sp": layout.tp if layout.sp else 1, "vocab": layout.tp if layout.vocab else 1, "other": layout.world_size,
    }  # fmt: skip
    return degrees.get(axis) or int(getattr(layout, axis))
