"""Where recordings of ranks that worked together do not agree, shared by the rules on mismatches."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.recording.crosscheck import Divergence, cross_check
from meshwright.recording.read import Recording


def divergences(evidence: Evidence) -> tuple[Divergence, ...]:
    """Of all recordings, the earliest first."""
    return tuple(cross_check(evidence.of(Recording)))


def hits(evidence: Evidence, *causes: str) -> Iterator[Hit]:
    """The first divergence, if it is of one of these causes: what follows it follows from it."""
    for found in evidence.derived(divergences)[:1]:
        if found.cause in causes:
            op = next(iter(found.events.values())).op
            yield Hit(ranks=found.ranks, group=found.group, collective=f"{op} {found.seq}", evidence=(found.message,))
