"""Detects ``swapped-calls``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.agreement import hits
from meshwright.diagnose.evidence import Evidence, Hit


def detect(evidence: Evidence) -> Iterator[Hit]:
    """The first disagreement is one of order."""
    return hits(evidence, "order")
