"""ZB-V (arXiv 2405.15362): zero-bubble scheduling with two chunks per rank, placed in a V.

Rank r holds the chunks r and 2p - 1 - r, so that a micro-batch comes back to the rank where it started and its backward begins
there: with F = I = W there is no bubble between a rank's first and last computation, in 1F1B's memory (2p chunks of half the size).
"""

from __future__ import annotations

from meshwright.schedule.actions import Action
from meshwright.schedule.order import Order, Side


def rank_actions(rank: int, p: int, m: int) -> list[Action]:
    """The order for at least 2p - 1 micro-batches; for fewer, those that are not there are left out."""
    planned = max(m, 2 * p - 1)
    down, up = Side(rank), Side(2 * p - 1 - rank)
    order = Order()
    _warm_up(order, down, up, rank, p)
    while up.forwards < planned:
        if down.forwards < planned:
            order.forward(down)
        _whole_backward(order, down)
        order.forward(up)
        _whole_backward(order, up)
    for _ in range(rank):
        order.backward_input(down)
        order.backward_input(up)
    for _ in range(p - rank):
        order.backward_input(down)
        order.weight(down)
    while order.waiting:
        order.weight(up if any(action.chunk == up.chunk for action in order.waiting) else down)
    return [action for action in order.actions if action.micro_batch < m]


def _warm_up(order: Order, down: Side, up: Side, rank: int, p: int) -> None:
    """Forwards until the first micro-batch is back, then one backward on the way up for each forward."""
    for _ in range(2 * (p - rank) - 1):
        order.forward(down)
    for _ in range(rank):
        order.forward(up)
        order.forward(down)
    for _ in range(p - rank):
        order.forward(up)
        _whole_backward(order, up)


def _whole_backward(order: Order, side: Side) -> None:
    """Input half and weight half, one behind the other; two actions, so that the gradient leaves before the weight half."""
    order.backward_input(side)
    order.weight(side)
