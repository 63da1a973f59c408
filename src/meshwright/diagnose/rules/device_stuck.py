"""Detects ``device-stuck``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.calls import named, told
from meshwright.diagnose.cohorts import stopped_enqueuing
from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.standing import ends_of, hit
from meshwright.diagnose.waits import Wait, standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Ranks that have not completed a collective that other members have."""
    still = evidence.derived(standstill)
    alone = sorted(rank for end in ends_of(evidence, "alone") for rank in end)
    if not alone:
        return
    stopped = {} if ends_of(evidence, "missing") else evidence.derived(stopped_enqueuing)
    first = [*(_sentence(still.alone[rank]) for rank in alone[:8]), *stopped.values()]
    found = hit(evidence, sorted({*alone, *stopped}), still.alone[alone[0]], first, "medium" if stopped else "high")
    if found is not None:
        yield found


def _sentence(wait: Wait) -> str:
    call = wait.call
    done = ranks_text(sorted(wait.done))
    return f"rank {wait.rank} has not completed {named(call)} of {call.event.group} ({told(call)}), which {done} completed"
