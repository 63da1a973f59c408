"""Detects ``silent-rank``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.job import missing_text, mostly_missing
from meshwright.diagnose.stacks import stack_of
from meshwright.diagnose.standing import ends_of, hit, waiters
from meshwright.diagnose.waits import standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Ranks without a file for which all others wait, where no rank with a file is to blame."""
    still = evidence.derived(standstill)
    ranks = sorted(rank for end in ends_of(evidence, "unknown") for rank in end)
    if not ranks or mostly_missing(still.job) or any(ends_of(evidence, kind) for kind in ("missing", "alone")):
        return
    wait = next(waiters(still, ranks))[0]
    found = hit(
        evidence,
        ranks,
        wait,
        [missing_text(still.job), *(text for rank in ranks if (text := stack_of(evidence, rank)))],
        confidence="medium",
    )
    if found is not None:
        yield found
