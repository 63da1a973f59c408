"""Naive model parallelism: one micro-batch at a time goes through all stages and back; one rank works, the others wait."""

from __future__ import annotations

from meshwright.schedule.actions import Action, Kind


def rank_actions(rank: int, m: int) -> list[Action]:
    """Forward and backward of each micro-batch before the next one starts."""
    return [Action(kind, rank, k) for k in range(m) for kind in (Kind.FORWARD, Kind.BACKWARD)]
