"""Detects ``missing-rank``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.cohorts import stopped_enqueuing
from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.stacks import stack_of
from meshwright.diagnose.standing import ends_of, hit, last_call, waiters
from meshwright.diagnose.waits import standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Ranks that wait for nobody and have not entered what others wait in; and those that stopped enqueuing while they wait themselves."""
    still = evidence.derived(standstill)
    ended = [rank for end in ends_of(evidence, "missing") for rank in end]
    stopped = evidence.derived(stopped_enqueuing) if ended or not still.alone else {}
    ranks = sorted({*ended, *stopped})
    if not ranks:
        return
    wait = next(waiters(still, ended or ranks))[0]
    first = [text for rank in ranks[:8] for text in (last_call(still.job.ranks[rank]), stopped.get(rank), stack_of(evidence, rank)) if text]
    first += [remark for rank in ranks for remark in still.job.ranks[rank].remarks[:2]]
    found = hit(evidence, ranks, wait, first, "medium" if stopped else "high")
    if found is not None:
        yield found
