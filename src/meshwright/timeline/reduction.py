"""Gradient reduction at the end of a step: each unit's from the moment at which the last micro-batch has left its layer.

One collective at a time, in the order in which gradients become complete; a rank with several chunks reduces a chunk's layers
while it still computes the others. A stack that does not hide them reduces after the rank's last computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from meshwright.chunk_time import chunk_times, layer_pairs
from meshwright.schedule.actions import Kind
from meshwright.step_time import beside_last_backward

if TYPE_CHECKING:
    from meshwright.ledger.build import Stage
    from meshwright.ledger.stages import Chunk
    from meshwright.priced import BlockNumbers, Priced
    from meshwright.timeline.events import Timeline

__all__ = ["Reduction", "reductions"]


class Reduction(NamedTuple):
    """One unit's collective: when its gradient was complete, when it ran."""

    name: str
    ready_s: float
    start_s: float
    end_s: float


def reductions(priced: Priced, timeline: Timeline, rank: int) -> list[Reduction]:
    """The reductions of a pipeline rank in the order in which they run; those that take no time are left out."""
    stage = priced.ledger.stage(rank)
    computed_s = float(timeline.computed_s[rank])
    waiting: list[tuple[float, str, float]] = []
    root_ready_s = 0.0
    for chunk in stage.chunks:
        start_s, end_s, weights_only = _last_backward(timeline, rank, chunk.index)
        for share, name, seconds in _completed(priced, chunk, weights_only):
            ready_s = start_s + share * (end_s - start_s)
            if name == "root":
                root_ready_s = max(root_ready_s, ready_s)
            else:
                waiting.append((ready_s, name, seconds))
    if stage.first or stage.last:
        waiting.append((root_ready_s, "root", float(priced.root(stage.first, stage.last).reduce_s)))
    if not priced.ledger.stack.hides_data_parallel:
        waiting = [(computed_s, name, seconds) for _, name, seconds in waiting]
    found, free_s = [], 0.0
    free_share = _free_share(priced, stage)
    for ready_s, name, seconds in sorted(waiting, key=lambda one: one[0]):
        if seconds:
            start_s = max(free_s, ready_s)
            free_s = _ends(start_s, seconds, computed_s, free_share)
            found.append(Reduction(name, ready_s, start_s, free_s))
    return found


def _free_share(priced: Priced, stage: Stage) -> float:
    """The part of the last backward in which the link is free for reductions."""
    times = chunk_times(priced)
    backward_s, free = beside_last_backward(priced, stage, times)
    span_s = sum(float(times[chunk.index].backward_span_s) for chunk in stage.chunks)
    return min(float(backward_s * free) / span_s, 1.0) if span_s else 1.0


def _ends(start_s: float, seconds: float, computed_s: float, free_share: float) -> float:
    """When a reduction ends that has the link for a share of the time until the rank has computed all, and then alone."""
    beside_s = max(computed_s - start_s, 0.0) * free_share
    return start_s + seconds / free_share if seconds <= beside_s else max(start_s, computed_s) + seconds - beside_s


def _last_backward(timeline: Timeline, rank: int, stage: int) -> tuple[float, float, bool]:
    """(start, end, whether it is a weight half) of the last backward of a piece of the model on its rank."""
    last = timeline.schedule.order_graph.last_backward[rank, stage]
    return float(timeline.start_s[last]), float(timeline.end_s[last]), int(timeline.kind[last]) == Kind.BACKWARD_WEIGHT


def _completed(priced: Priced, chunk: Chunk, weights_only: bool) -> Iterator[tuple[float, str, float]]:
    """(share of the backward after which it is complete, unit, its seconds) in the backward's order."""

    def seconds(block: BlockNumbers) -> float:
        return float(block.backward_weight.total_s if weights_only else block.backward_s)

    pairs = layer_pairs(priced, chunk)
    order: list[tuple[str, float, float]] = []
    if chunk.last:
        order.append(("root", seconds(priced.head), 0.0))
    number = chunk.first_layer + sum(count for _, _, count in pairs)
    for unit, block, count in reversed(pairs):
        own_s, reduce_s = seconds(block), float(unit.reduce_s)
        for _ in range(count):
            number -= 1
            order.append((f"layer {number}", own_s, reduce_s))
    if chunk.first:
        order.append(("root", seconds(priced.embedding), 0.0))
    total = sum(own for _, own, _ in order) or 1.0
    passed = 0.0
    for name, own, reduce_s in order:
        passed += own
        yield passed / total, name, reduce_s
