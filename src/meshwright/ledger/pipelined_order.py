"""The rows of one step of a pipeline rank, in the order of its schedule: the order of order.py, pass by pass.

A pass over the first or the last piece of the model needs the root (embedding, norm, head): under zero=3 it gathers the root and frees it,
like every unit, since passes of other micro-batches come between; the backward gathers it again where it needs a weight of it, which an
embedding alone does not. The weight half of a split backward gathers nothing: products of what was kept are all it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.ledger import step
from meshwright.ledger.build import Ledger, scalar_rows
from meshwright.ledger.data_parallel import Unit
from meshwright.ledger.order import (
    Half,
    Piece,
    Placed,
    after_backward,
    backward_order,
    forward_order,
    leaving,
    pieces,
    placed_rows,
    rows_of,
    units_of,
)
from meshwright.ledger.stages import Chunk
from meshwright.schedule import Action, Kind, Schedule, with_communication
from meshwright.schedule.actions import COMPUTE_KINDS
from meshwright.spec import names

HALVES: dict[Kind, Half] = {Kind.BACKWARD: "whole", Kind.BACKWARD_INPUT: "input", Kind.BACKWARD_WEIGHT: "weight"}


def stage_order(ledger: Ledger, place: int, schedule: Schedule) -> Iterator[Placed]:
    """Every collective and P2P of one step on a pipeline rank.

    Args:
        schedule: with its messages or without them; they are derived then.
    """
    if all(action.kind in COMPUTE_KINDS for actions in schedule for action in actions):
        schedule = with_communication(schedule)
    rank = _Stage(ledger, place, schedule)
    yield from placed_rows([row for row in scalar_rows(ledger) if row.name == names.TOKEN_COUNT])
    for action in schedule.actions[place]:
        for placed in rank.rows(action):
            yield placed if placed.micro_batch is None else replace(placed, chunk=action.chunk)
    yield from after_backward(ledger, rank.units, rank.root)


@dataclass
class _Passes:
    """One chunk of the rank.

    Attributes:
        total: micro-batches that pass it. forwards, complete: how many have, in each direction.
    """

    chunk: Chunk
    pieces: list[Piece]
    units: dict[int, Unit]
    total: int
    forwards: int = 0
    complete: int = 0

    @property
    def has_end(self) -> bool:
        return self.chunk.first or self.chunk.last


class _Stage:
    """A pipeline rank while its list is gone through."""

    def __init__(self, ledger: Ledger, place: int, schedule: Schedule) -> None:
        self.ledger, self.schedule, self.layout = ledger, schedule, ledger.layout
        stage = ledger.stage(place)
        self.root = ledger.root(stage.first, stage.last) if stage.first or stage.last else None
        self.root_forwards = 0
        self.chunks: dict[int, _Passes] = {}
        for number, rank in enumerate(schedule.rank_of_chunk):
            if rank == place:
                chunk = ledger.pipeline.chunks[schedule.stage(number)]
                found = pieces(ledger, chunk)
                self.chunks[number] = _Passes(chunk, found, units_of(found), len(schedule.micro_batches_of(number)))
        self.root_left = sum(passes.total for passes in self.chunks.values() if passes.has_end)

    @property
    def units(self) -> dict[int, Unit]:
        """Of all layers, in model order."""
        found = {layer: unit for passes in self.chunks.values() for layer, unit in passes.units.items()}
        return dict(sorted(found.items()))

    def rows(self, action: Action) -> Iterator[Placed]:
        """What one action sends."""
        if action.kind not in COMPUTE_KINDS:
            yield self._message(action)
        elif action.kind == Kind.FORWARD:
            yield from self._forward(self.chunks[action.chunk], action.micro_batch)
        else:
            yield from self._backward(self.chunks[action.chunk], action.micro_batch, HALVES[action.kind])

    def _forward(self, passes: _Passes, k: int) -> Iterator[Placed]:
        keep = self.layout.zero_variant == "keep"
        if passes.has_end and self.root is not None:
            gathers = self.root.step if keep and not self.root_forwards else self.root.forward
            yield from placed_rows(rows_of(gathers, "all_gather", "forward"), micro_batch=k)
            self.root_forwards += 1
        yield from forward_order(passes.pieces, k, keep and not passes.forwards)
        passes.forwards += 1

    def _backward(self, passes: _Passes, k: int, half: Half) -> Iterator[Placed]:
        root = self.root if passes.has_end else None
        if root is not None and half != "weight" and passes.chunk.root_again:
            yield from placed_rows(rows_of(root.backward, "all_gather", "backward_input"), micro_batch=k)
        passes.complete += half != "input"
        yield from backward_order(passes.pieces, passes.units, k, passes.complete == passes.total, self.layout.zero, half)
        if root is not None and half != "input":
            yield from placed_rows([row for row in root.backward if row.op != "all_gather"], micro_batch=k)
            self.root_left -= 1
            if not self.root_left:
                yield from leaving(root, None, k, self.layout.zero)

    def _message(self, action: Action) -> Placed:
        gradient = action.kind in (Kind.SEND_BACKWARD, Kind.RECV_BACKWARD)
        sends = action.kind in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD)
        rows = step.boundary(self.ledger.sizes, "backward_input" if gradient else "forward", 1, 1)
        (row,) = (row for row in rows if row.op == ("send" if sends else "recv"))
        other = action.chunk + (1 if sends != gradient else -1)
        return Placed(row, row.name, None, action.micro_batch, action.chunk, self.schedule.rank_of_chunk[other])
