"""Detects ``missing-rank``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.stacks import stack_of
from meshwright.diagnose.standing import ends_of, hit, last_call, waiters
from meshwright.diagnose.waits import standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Ranks that wait for nobody and have not entered what others wait in."""
    still = evidence.derived(standstill)
    ranks = sorted(rank for end in ends_of(evidence, "missing") for rank in end)
    if not ranks:
        return
    wait = next(waiters(still, ranks))[0]
    first = [text for rank in ranks[:8] for text in (last_call(still.job.ranks[rank]), stack_of(evidence, rank)) if text]
    first += [remark for rank in ranks for remark in still.job.ranks[rank].remarks[:2]]
    found = hit(evidence, ranks, wait, first)
    if found is not None:
        yield found
