"""The collectives that one rank is expected to execute in a step: op, group, dtype, bytes, order, and why.

The rows of the ledger are the same on every rank; what differs is filled in here from the rank's place: its groups, its neighbours in a
ring, and how many token copies the router sends its way. diff/ compares the list with a recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.ledger.build import Ledger
from meshwright.ledger.order import BETWEEN_STAGES, Placed, layer_kinds, step_order
from meshwright.ledger.pipelined_order import stage_order
from meshwright.ledger.routed import Routed, routed_rows
from meshwright.ledger.rows import Row
from meshwright.mesh import Mesh
from meshwright.schedule import Schedule
from meshwright.spec.rules.rule import kv_heads

REDUCING = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """One collective or P2P of one rank; attributes as those of recording.Event.

    Attributes:
        axis: of the mesh. ranks: of the group, in its order.
        chunk: of the pipeline; None without one.
        splits_known: whether input_splits and output_splits are to be compared.
        why: the ledger's reason.
    """

    step: int
    micro_batch: int | None
    phase: str
    module: str
    op: str
    reduce_op: str
    axis: str
    ranks: tuple[int, ...]
    peer: int | None
    dtype: str
    payload_bytes: int
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    splits_known: bool = False
    chunk: int | None = None
    why: str = ""


def expected_events(ledger: Ledger, rank: int, steps: int = 1, loads: Any = None, schedule: Schedule | None = None) -> list[Expected]:
    """What ``rank`` sends and receives in ``steps`` steps, in order (exact inside each group).

    Args:
        loads: int [steps, micro-batches, MoE layers (multi-token prediction last), ranks, E], token copies that each rank sends to each
            expert; None for a balanced load, whose splits are not told.
        schedule: of the pipeline stages; needed with pp > 1.
    """
    places = _Places(ledger, rank)
    order = list(step_order(ledger) if schedule is None else stage_order(ledger, places.stage, schedule))
    found: list[Expected] = []
    for step in range(steps):
        found += places.of_step(order, step, None if loads is None else loads[step])
    return found


class _Places:
    """Where one rank stands on every axis, and what follows for a row."""

    def __init__(self, ledger: Ledger, rank: int) -> None:
        self.ledger, self.rank = ledger, rank
        self.mesh = Mesh(ledger.layout, kv_heads=kv_heads(ledger.model))
        self._groups: dict[str, tuple[int, ...]] = {}
        self._moe_index = {layer: n for n, layer in enumerate(i for i, moe in enumerate(layer_kinds(ledger.model)) if moe)}

    @property
    def stage(self) -> int:
        """The place in the pipeline."""
        return self.group("pp").index(self.rank)

    def group(self, axis: str) -> tuple[int, ...]:
        if axis not in self._groups:
            self._groups[axis] = self._find(axis)
        return self._groups[axis]

    def _find(self, axis: str) -> tuple[int, ...]:
        if axis not in BETWEEN_STAGES:
            return tuple(self.mesh.group_of(self.rank, axis))
        stages = self.group("pp")
        one = 0 if axis == "embedding" else min(self.stage, len(stages) - 1 - self.stage)
        return stages[one], stages[-1 - one]

    def of_step(self, order: Sequence[Placed], step: int, loads: Any) -> Iterator[Expected]:
        for placed in order:
            event = self.event(placed, step)
            routed = self._routed(placed, loads)
            yield event if routed is None else replace(
                event, payload_bytes=routed.payload_bytes, input_splits=routed.input_splits, output_splits=routed.output_splits,
                splits_known=bool(routed.input_splits),
            )  # fmt: skip

    def event(self, placed: Placed, step: int) -> Expected:
        row = placed.row
        assert row.op is not None and row.axis is not None and row.before is not None
        ranks = self.group(row.axis)
        return Expected(
            step=step, micro_batch=placed.micro_batch, phase=row.phase, module=placed.module, op=row.op,
            reduce_op=row.reduce_op if row.op in REDUCING else "", axis=row.axis, ranks=ranks,
            peer=_peer(row, ranks, self.rank) if placed.peer_stage is None else ranks[placed.peer_stage],
            dtype=row.before.dtype, payload_bytes=int(row.payload_bytes), chunk=placed.chunk, why=row.why,
        )  # fmt: skip

    def _routed(self, placed: Placed, loads: Any) -> Routed | None:
        if loads is None or placed.layer is None or placed.micro_batch is None or placed.layer not in self._moe_index:
            return None
        load = loads[placed.micro_batch][self._moe_index[placed.layer]]
        return routed_rows(placed.row, self.ledger.sizes, load, self.rank, self.mesh)


def _peer(row: Row, ranks: tuple[int, ...], rank: int) -> int | None:
    """The neighbour in a ring: keys and values go to the next rank."""
    if row.op not in ("send", "recv"):
        return None
    place = ranks.index(rank)
    return ranks[(place + 1) % len(ranks)] if row.op == "send" else ranks[place - 1]
