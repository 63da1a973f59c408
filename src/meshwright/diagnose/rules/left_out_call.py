"""Detects ``left-out-call``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.agreement import hits
from meshwright.diagnose.evidence import Evidence, Hit


def detect(evidence: Evidence) -> Iterator[Hit]:
    """The first disagreement is a call that the culprits left out, and went on."""
    return hits(evidence, "missing")
