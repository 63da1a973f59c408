"""Detects ``nccl-warning``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.job import job_of


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Ranks whose NCCL warned."""
    records = [record for record in evidence.derived(job_of).ranks.values() if record.nccl_warnings]
    if records:
        told = tuple(f"rank {record.rank}: {warning}" for record in records for warning in record.nccl_warnings[:3])
        yield Hit(ranks=tuple(record.rank for record in records), evidence=told[:12], confidence="low")
