"""1F1B with a flush (PipeDream-Flush, arXiv 2006.09503; Megatron-LM's default, arXiv 2104.04473 section 2.2).

A rank runs ahead by as many forwards as there are ranks behind it, then alternates one forward and one backward, so that it
never holds more than p - rank micro-batches.
"""

from __future__ import annotations

from meshwright.schedule.actions import Action, Kind


def warm_up(rank: int, p: int, m: int) -> int:
    """Forwards before the first pair of forward and backward."""
    return min(p - 1 - rank, m)


def rank_actions(rank: int, p: int, m: int) -> list[Action]:
    """Warm-up forwards, forward-backward pairs, the remaining backwards."""
    ahead = warm_up(rank, p, m)
    actions = [Action(Kind.FORWARD, rank, k) for k in range(ahead)]
    for k in range(m - ahead):
        actions += (Action(Kind.FORWARD, rank, ahead + k), Action(Kind.BACKWARD, rank, k))
    actions += [Action(Kind.BACKWARD, rank, k) for k in range(m - ahead, m)]
    return actions
