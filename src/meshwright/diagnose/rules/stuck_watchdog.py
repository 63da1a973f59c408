"""Detects ``stuck-watchdog``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.job import job_of
from meshwright.diagnose.stacks import stack_of
from meshwright.diagnose.waits import standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Ranks whose heartbeat monitor ended them, where no calls tell more."""
    if evidence.derived(standstill).ends:
        return
    records = [record for record in evidence.derived(job_of).ranks.values() if record.watchdog_stuck]
    if records:
        told = [text for record in records[:8] for text in (*record.remarks[:2], stack_of(evidence, record.rank)) if text]
        yield Hit(ranks=tuple(record.rank for record in records), evidence=tuple(told), confidence="medium")
