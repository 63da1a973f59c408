"""Interleaved 1F1B (arXiv 2104.04473 section 2.2), in Megatron-LM's order.

Rank r holds the chunks r, r + p, r + 2p, ... Micro-batches go in groups of p: a rank takes one group through its first chunk,
then the same group through its second, and so on; backwards in the same way from the last chunk to the first.
"""

from __future__ import annotations

from meshwright.schedule.actions import Action, Kind


def warm_up(rank: int, p: int, v: int, m: int) -> int:
    """Forwards before the first pair: megatron-core's get_pp_rank_microbatches, (p-1-rank) 2 + (v-1) p, never above m v."""
    return min(2 * (p - 1 - rank) + (v - 1) * p, m * v)


def forward_order(rank: int, p: int, v: int, m: int) -> list[tuple[int, int]]:
    """(chunk, micro-batch) of a rank's forwards; its backwards visit the chunks the other way round."""
    return [
        (rank + turn * p, group * p + k) for group in range(m // p) for turn in range(v) for k in range(p)
    ]  # fmt: skip


def rank_actions(rank: int, p: int, v: int, m: int) -> list[Action]:
    """Needs m divisible by p."""
    forward = [Action(Kind.FORWARD, chunk, k) for chunk, k in forward_order(rank, p, v, m)]
    last = 2 * rank + (v - 1) * p
    backward = [Action(Kind.BACKWARD, last - chunk, k) for chunk, k in forward_order(rank, p, v, m)]
    ahead = warm_up(rank, p, v, m)
    actions = forward[:ahead]
    for pair in zip(forward[ahead:], backward, strict=False):
        actions += pair
    actions += backward[m * v - ahead :]
    return actions
