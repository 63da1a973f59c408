"""Detects ``device-stuck``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.calls import named, told
from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.standing import ends_of, hit
from meshwright.diagnose.waits import Wait, standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Ranks that have not completed a collective that other members have."""
    still = evidence.derived(standstill)
    ranks = sorted(rank for end in ends_of(evidence, "alone") for rank in end)
    if not ranks:
        return
    first = [_sentence(still.alone[rank]) for rank in ranks[:8]]
    found = hit(evidence, ranks, still.alone[ranks[0]], first)
    if found is not None:
        yield found


def _sentence(wait: Wait) -> str:
    call = wait.call
    done = ranks_text(sorted(wait.done))
    return f"rank {wait.rank} has not completed {named(call)} of {call.event.group} ({told(call)}), which {done} completed"
