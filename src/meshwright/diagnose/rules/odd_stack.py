"""Detects ``odd-stack``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.agreement import disagreements
from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.stacks import Stack, alike
from meshwright.diagnose.waits import standstill

MOST = 0.5
"""More than half of the ranks must stand in one place for the others to be the odd ones."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Most ranks wait in a collective, and some stand elsewhere; asked where nothing but stacks tells."""
    stacks = evidence.of(Stack)
    if evidence.derived(disagreements) or evidence.derived(standstill).ends or len(stacks) < 3:
        return
    most, *others = alike(stacks)
    odd = [same for same in others if not same[0].in_collective]
    if len(most) <= MOST * len(stacks) or not most[0].in_collective or not odd:
        return
    told = [f"{_who(most)} wait in {most[0].own_frame}"] + [f"{_who(same)}: {same[0].state}, in {same[0].own_frame}" for same in odd[:8]]
    ranks = tuple(sorted(stack.rank for same in odd for stack in same if stack.rank is not None))
    yield Hit(
        ranks=ranks, evidence=tuple(told), confidence="medium",
        words={"who": _who([stack for same in odd for stack in same]), "frame": odd[0][0].own_frame, "waiting": most[0].own_frame},
    )  # fmt: skip


def _who(stacks: list[Stack]) -> str:
    ranks = [stack.rank for stack in stacks if stack.rank is not None]
    return ranks_text(ranks) if len(ranks) == len(stacks) else ", ".join(stack.who for stack in stacks[:8])
