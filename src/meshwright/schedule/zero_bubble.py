"""ZB-H1 and ZB-H2, the zero-bubble paper's handcrafted schedules (arXiv 2401.10241 section 2).

The backward is split: its input half I is on the way of other ranks, its weight half W is not and waits until there is nothing
else to do. H1 holds as much as 1F1B's first rank (p micro-batches) on every rank; H2 runs twice as far ahead, so that with
F = I = W no rank ever idles between its first and its last computation (2p - 1 micro-batches).
"""

from __future__ import annotations

from meshwright.schedule.actions import Action, Kind


def h1_rank_actions(rank: int, p: int, m: int) -> list[Action]:
    """1F1B's warm-up; the weight halves lag by as many micro-batches as there are ranks before this one."""
    return _rank_actions(rank, m, ahead=p - rank, lag=rank)


def h2_rank_actions(rank: int, p: int, m: int) -> list[Action]:
    """Twice the warm-up and twice the lag."""
    return _rank_actions(rank, m, ahead=2 * (p - rank) - 1, lag=2 * rank)


def _rank_actions(rank: int, m: int, ahead: int, lag: int) -> list[Action]:
    """``ahead`` forwards, then I, W and F in turn, W ``lag`` micro-batches behind I."""
    ahead, lag = min(ahead, m), min(lag, m)
    actions = [Action(Kind.FORWARD, rank, k) for k in range(ahead)]
    for k in range(m):
        actions.append(Action(Kind.BACKWARD_INPUT, rank, k))
        if k >= lag:
            actions.append(Action(Kind.BACKWARD_WEIGHT, rank, k - lag))
        if ahead + k < m:
            actions.append(Action(Kind.FORWARD, rank, ahead + k))
    actions += [Action(Kind.BACKWARD_WEIGHT, rank, k) for k in range(m - lag, m)]
    return actions
