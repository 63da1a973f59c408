"""Detects ``too-few-files``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.job import missing_text, mostly_missing
from meshwright.diagnose.standing import ends_of, entered, waiters
from meshwright.diagnose.waits import standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """All waiting ends at ranks of which nothing is known, and these are most of the job."""
    still = evidence.derived(standstill)
    unknown = sorted(rank for end in ends_of(evidence, "unknown") for rank in end)
    if not unknown or not mostly_missing(still.job) or any(ends_of(evidence, kind) for kind in ("missing", "alone")):
        return
    wait, waiting = next(waiters(still, unknown))
    yield Hit(
        group=wait.call.event.group, collective=f"{wait.call.event.op} {wait.call.event.seq}", confidence="low",
        evidence=(missing_text(still.job), entered(wait.call, waiting)),
        words={"known": ranks_text(sorted(still.job.ranks)), "waiting": ranks_text(waiting)},
    )  # fmt: skip
