"""Ranks that stopped enqueuing although ranks in the same place of the program went on.

A GPU that waits does not keep its host from enqueuing: ranks that are stuck in the same call of the same program have enqueued equally much
behind it. One that has enqueued less, and for which others wait, does not only wait: its host stands still as well. That tells a second
culprit that happens to wait for the first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from meshwright.diagnose.calls import RankCalls
from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.job import JobCalls
from meshwright.diagnose.waits import standstill

LEAST_ALIKE = 3
"""So many ranks must have come equally far, and more than half of those in that place, for another to be behind them."""

Reached = Mapping[str, int]
"""The last collective enqueued, by axis."""


def stopped_enqueuing(evidence: Evidence) -> dict[int, str]:
    """Such ranks, each with a sentence."""
    still = evidence.derived(standstill)
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, waits in still.waits.items():
        event = waits[0].call.event
        if rank not in still.alone:
            together[_axis(still.job, event.group), event.op, event.seq].append(rank)
    awaited = {rank for waits in still.waits.values() for wait in waits for rank in wait.absent}
    found: dict[int, str] = {}
    for ranks in together.values():
        reached = {rank: _reached(still.job.ranks[rank], still.job) for rank in ranks}
        (most, count), *_ = Counter(tuple(sorted(each.items())) for each in reached.values()).most_common(1)
        if count >= LEAST_ALIKE and 2 * count > len(ranks):
            others = [rank for rank in ranks if tuple(sorted(reached[rank].items())) == most]
            found |= {rank: _sentence(rank, axis, reached[rank], dict(most), others)
                      for rank in ranks if rank in awaited and (axis := _behind(reached[rank], dict(most)))}  # fmt: skip
    return found


def _axis(job: JobCalls, group: str) -> str:
    return job.groups[group].axis if group in job.groups else group


def _reached(record: RankCalls, job: JobCalls) -> Reached:
    reached: dict[str, int] = {}
    for (group, kind), calls in record.by_place.items():
        if kind == "collective":
            axis = _axis(job, group)
            reached[axis] = max(reached.get(axis, 0), *(call.event.seq or 0 for call in calls))
    for group, status in record.status.items():
        if status.enqueued is not None and (group, "p2p") not in record.by_place:
            axis = _axis(job, group)
            reached[axis] = max(reached.get(axis, 0), status.enqueued)
    return reached


def _behind(mine: Reached, most: Reached) -> str:
    """An axis in which a rank is behind; "" unless it is behind somewhere and ahead nowhere."""
    if any(count > most.get(axis, 0) for axis, count in mine.items()):
        return ""
    return next((axis for axis, count in most.items() if mine.get(axis, 0) < count), "")


def _sentence(rank: int, axis: str, mine: Reached, most: Reached, others: list[int]) -> str:
    return (
        f"rank {rank} stopped enqueuing at {mine.get(axis, 0)} of {axis}, where {ranks_text(others)}, which wait in the same place, "
        f"have come to {most[axis]}"
    )
