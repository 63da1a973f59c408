"""DualPipe (DeepSeek-V3, arXiv 2412.19437 section 3.2.1) and DualPipe-V, the same order cut in half.

DualPipe feeds micro-batches from both ends: rank r holds stage r for the ones that go down and stage p - 1 - r for those that go
up, so the model's parameters are held twice. In DualPipe-V a micro-batch goes down and comes up again on the same ranks: p ranks
hold 2p chunks in a V, and nothing twice. In the steady part a forward of one direction and a backward of the other run as one
computation, each hiding the other's messages.

The order is that of DeepSeek's published code (github.com/deepseek-ai/DualPipe), eight phases.
"""

from __future__ import annotations

from typing import Any

from meshwright.schedule.actions import Action
from meshwright.schedule.order import Order, Side


def dualpipe_rank_actions(rank: int, p: int, m: int) -> list[Action]:
    """Needs an even p, and an even m of at least 2p."""
    down = Side(rank)
    up = Side(p + (p - 1 - rank), first_micro_batch=m // 2)
    near, far = (down, up) if rank < p // 2 else (up, down)
    return _order(min(rank, p - 1 - rank), p // 2, m // 2, near, far)


def dualpipe_v_rank_actions(rank: int, p: int, m: int) -> list[Action]:
    """Needs m of at least 2p."""
    return _order(rank, p, m, Side(rank), Side(2 * p - 1 - rank))


def pair_counts(schedule: str, rank: int, p: int, m: Any) -> tuple[Any, Any]:
    """How many pairs a rank runs: (forward of the first of its chunks with a backward of the second, the reverse). m may be an array.

    The first is on the way in, but for the lower half of dualpipe's ranks, whose first chunk is of the micro-batches that go down.
    """
    depth, half, one_way = (rank, p, m) if schedule == "dualpipe-v" else (min(rank, p - 1 - rank), p // 2, m // 2)
    steady, behind = one_way - 2 * half + depth + 1, half - depth - 1
    inward, outward = steady - (behind == 0), steady + behind
    return (inward, outward) if depth == rank else (outward, inward)


def _order(depth: int, half: int, m: int, near: Side, far: Side) -> list[Action]:
    """The order of the rank at ``depth`` ranks from the entrance, ``half`` ranks before the turning point.

    Args:
        depth: 0 where micro-batches enter.
        half: ranks from the entrance to the middle.
        m: micro-batches of one direction.
        near: the chunk that a micro-batch passes on its way in.
        far: the chunk that it passes on its way out.
    """
    order, behind = Order(), half - depth - 1
    _fill(order, depth, behind, near, far)
    for k in range(m - 2 * half + depth + 1):
        if k == 0 and behind == 0:
            order.forward(near)  # the middle rank: running these two as one would lengthen the way of the first micro-batch
            order.backward(far)
        else:
            order.pair(near, far)
        order.pair(far, near)
    for _ in range(behind):
        order.backward(far)
        order.pair(far, near)
    _drain(order, depth, behind, near, far)
    return order.actions


def _fill(order: Order, depth: int, behind: int, near: Side, far: Side) -> None:
    for _ in range(2 * behind):
        order.forward(near)
    for _ in range(depth + 1):
        order.forward(near)
        order.forward(far)
    for _ in range(behind):
        order.backward_input(far)
        order.weight()
        order.forward(far)


def _drain(order: Order, depth: int, behind: int, near: Side, far: Side) -> None:
    """The last backwards; from the middle of the phase on their weight halves are put off and fill the waits."""
    for k in range(2 * (depth + 1)):
        side = near if k % 2 else far
        if k < depth + 1:
            order.backward(side)
        else:
            order.backward_input(side)
    for _ in range(behind):
        order.weight()
        order.backward_input(near)
    while order.waiting:
        order.weight()
