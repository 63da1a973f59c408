"""Inside one layer: its computations and the collectives of tp, cp and ep in the order in which they run, and what each hides.

A collective that the next operation waits for stands alone. A ring's exchange of keys and values runs beside the attention of the
block that is at hand: with R blocks, R - 1 exchanges, each behind one R-th of the core. The seconds are those of the plan's price
(priced.py), which adds them up without saying when.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.priced import PART_OF_AXIS
from meshwright.timeline.sharded import COMPUTE, Piece

if TYPE_CHECKING:
    from meshwright.ledger.rows import Row
    from meshwright.priced import Priced

__all__ = ["LANES", "InsideLayer", "InsidePass", "inside_layer"]

LANES = (COMPUTE, "tp", "cp", "ep")


@dataclass(frozen=True)
class InsidePass:
    """The forward or the backward (recomputation included) of one layer and micro-batch; pieces start at 0."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def span_s(self) -> float:
        return max((piece.end_s for piece in self.pieces), default=0.0)

    def busy_s(self, lane: str) -> float:
        """How long a lane is busy."""
        return sum(piece.end_s - piece.start_s for piece in self.pieces if piece.lane == lane)

    def exposed_s(self, lane: str) -> float:
        """How long an axis keeps its rank waiting: while it sends and nothing computes."""
        computing = [piece for piece in self.pieces if piece.lane == COMPUTE]
        return sum(
            piece.end_s - piece.start_s - sum(max(0.0, min(piece.end_s, c.end_s) - max(piece.start_s, c.start_s)) for c in computing)
            for piece in self.pieces
            if piece.lane == lane
        )


@dataclass(frozen=True)
class InsideLayer:
    """Both passes of the kind of layer that the model has most of."""

    label: str
    passes: tuple[InsidePass, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "layer": self.label,
            **{
                each.name: {
                    "span_s": each.span_s,
                    "busy_s": {lane: each.busy_s(lane) for lane in LANES},
                    "exposed_s": {lane: each.exposed_s(lane) for lane in LANES[1:]},
                    "pieces": [piece._asdict() for piece in each.pieces],
                }
                for each in self.passes
            },
        }


def inside_layer(numbers: Priced) -> InsideLayer | None:
    """Of one layout, not of an array of them; None where no axis sends anything inside a layer."""
    counts: dict[Any, int] = {}
    for chunk in numbers.ledger.pipeline.chunks:
        for block, count in chunk.layers:
            counts[block] = counts.get(block, 0) + count
    block = max(counts, key=lambda each: counts[each])
    rows = numbers.ledger.layer(block)
    forward = InsidePass("forward", tuple(_pieces(numbers, [rows.forward])))
    backward = InsidePass("backward", tuple(_pieces(numbers, [rows.recompute, rows.backward])))
    if all(piece.lane == COMPUTE for one in (forward, backward) for piece in one.pieces):
        return None
    return InsideLayer(block.kind.label, (forward, backward))


def _pieces(numbers: Priced, passes: Iterable[list[Row]]) -> list[Piece]:
    """Of passes that follow each other."""
    found: list[Piece] = []
    now = 0.0
    for rows in passes:
        hides = numbers.ledger.stack.hides_context_parallel
        exchanged = [row for row in rows if row.hidden_by and hides]
        for row in rows:
            if row.hidden_by and hides:
                continue
            seconds = float(row.times * numbers.row_s(row))
            if row.kind == "attention" and exchanged:
                ring_s = sum(float(each.times * numbers.row_s(each)) for each in exchanged)
                now = _around_the_ring(found, numbers, row, now, seconds, ring_s)
                continue
            lane = COMPUTE if row.op is None else PART_OF_AXIS[row.axis or ""]
            seconds = seconds * numbers.exposed_share_of_tp if lane == "tp" else seconds
            name = row.name if row.op is None else f"{row.name} {row.op}"
            found.append(Piece(lane, name, now, now + seconds))
            now += seconds
    return [piece for piece in found if piece.end_s > piece.start_s]


def _around_the_ring(found: list[Piece], numbers: Priced, core: Row, begin_s: float, core_s: float, ring_s: float) -> float:
    """The core, block by block, each beside the exchange for the next one; when the last block is done."""
    layout = numbers.ledger.layout
    blocks = int(layout.cp // layout.ulysses)
    now = begin_s
    for index in range(blocks):
        computed = now + core_s / blocks
        found.append(Piece(COMPUTE, f"{core.name} {index + 1}/{blocks}", now, computed))
        if index + 1 == blocks:
            return computed
        received = now + ring_s / (blocks - 1)
        found.append(Piece("cp", f"keys and values {index + 2}/{blocks}", now, received))
        now = max(computed, received)
    return now
