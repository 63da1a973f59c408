"""Detects ``stalled-collective``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.standing import ends_of, entered, hit
from meshwright.diagnose.waits import Wait, standstill


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Collectives that all members have entered and none has completed, with nothing before them."""
    still = evidence.derived(standstill)
    together: dict[tuple[str, int | None], list[Wait]] = defaultdict(list)
    for end in [*ends_of(evidence, "stalled"), *ends_of(evidence, "circle")]:
        waits = [still.waits[rank][0] for rank in end if still.waits.get(rank)]
        if len(end) > 1 and any(wait.absent & set(end) for rank in end for wait in still.waits.get(rank, ())):
            continue
        for wait in waits:
            if wait.call.event.asynchronous:
                continue  # nobody may ever have asked whether it is done
            together[wait.call.event.group, wait.call.event.seq].append(wait)
    for waits in together.values():
        ranks = sorted(wait.rank for wait in waits)
        found = hit(
            evidence, ranks, waits[0], [entered(waits[0].call, ranks), "all members have entered it, and none has completed it"], "low"
        )
        if found is not None:
            yield found
