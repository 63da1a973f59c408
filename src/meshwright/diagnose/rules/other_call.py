"""Detects ``other-call``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.agreement import hits
from meshwright.diagnose.evidence import Evidence, Hit


def detect(evidence: Evidence) -> Iterator[Hit]:
    """The first disagreement is that the same kind of call comes from another place of the program."""
    return hits(evidence, "call_site", "progress")
