"""Detects ``waiting-in-a-circle``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.program_order import leavers
from meshwright.diagnose.standing import ends_of, entered, hit
from meshwright.diagnose.waits import Wait, standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Ranks of which each waits for another of them, in a call that the other has not come to."""
    still = evidence.derived(standstill)
    for ranks in ends_of(evidence, "circle"):
        waits = [wait for rank in ranks for wait in still.waits.get(rank, ()) if wait.absent & set(ranks)]
        if not waits:
            continue  # all have entered, in the same order: a stalled collective
        culprits, reason = leavers(still.job, ranks)
        told = [*([reason] if culprits else []), *(_sentence(wait, ranks) for wait in waits[:8])]
        found = hit(evidence, culprits or ranks, waits[0], told)
        if found is not None:
            who = f"; {ranks_text(culprits)} left the common order" if culprits else ""
            yield replace(found, words=found.words | {"circle": ranks_text(ranks), "who": who})


def _sentence(wait: Wait, ranks: tuple[int, ...]) -> str:
    return f"{entered(wait.call, (wait.rank,))}, for {ranks_text(sorted(wait.absent & set(ranks)))}"
