"""GPipe (arXiv 1811.06965): all forwards, then all backwards. Every rank holds all m micro-batches."""

from __future__ import annotations

from meshwright.schedule.actions import Action, Kind


def rank_actions(rank: int, m: int) -> list[Action]:
    """The backwards run in the order of the forwards, as torch's ScheduleGPipe has them."""
    return [Action(kind, rank, k) for kind in (Kind.FORWARD, Kind.BACKWARD) for k in range(m)]
