"""For what each rank waits, and which rank the others wait for.

Every moment of a rank between the pipeline's first and last computation is spent computing or in one of these causes:

    upstream     the activation it needs next is not made yet
    downstream   the gradient it needs next is not made yet
    transfer     what it needs is made and on its way
    sending      its own message holds it (no overlap); of a measured step, whatever its program does between two computations
    start        its first micro-batch has not come to it yet
    end          it has nothing left to do
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.schedule.actions import Kind

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline

__all__ = ["CAUSES", "Wait", "culprit", "waiting_s", "waits"]

CAUSES = ("upstream", "downstream", "transfer", "sending", "start", "end")


class Wait(NamedTuple):
    """One stretch of waiting; ``event`` is the index of the computation that it delays, or -1 at the end."""

    rank: int
    cause: str
    start_s: float
    end_s: float
    event: int


def waits(timeline: Timeline) -> list[Wait]:
    """All stretches of waiting, rank by rank in time's order."""
    found: list[Wait] = []
    begin, finish = float(timeline.start_s.min()), float(timeline.start_s.min()) + timeline.span_s
    busy_until, rank = begin, -1
    last = len(timeline) - 1
    for index in range(len(timeline)):
        if timeline.second_of_pair[index]:
            continue
        first = timeline.rank[index] != rank
        if first:
            rank, busy_until = int(timeline.rank[index]), begin
        found += _before(timeline, index, rank, busy_until, first)
        busy_until = float(timeline.end_s[index])
        after = index + 2 if index < last and timeline.second_of_pair[index + 1] else index + 1
        if held := float(timeline.held_s[index:after].sum()):
            stop = min(busy_until + held, finish)
            if stop > busy_until:
                found.append(Wait(rank, "sending", busy_until, stop, index))
            busy_until = stop
        if (after > last or timeline.rank[after] != rank) and finish > busy_until:
            found.append(Wait(rank, "end", busy_until, finish, -1))
    return found


def _before(timeline: Timeline, index: int, rank: int, free: float, first: bool) -> list[Wait]:
    """The wait in front of a computation: until its input is made, then until that has arrived."""
    start = float(timeline.start_s[index])
    if start <= free:
        return []
    if first:
        return [Wait(rank, "start", free, start, index)]
    if timeline.producer[index] < 0:  # of a measured step alone: a simulated computation without an input never waits
        return [Wait(rank, "sending", free, start, index)]
    late = index
    pair = index + 1 < len(timeline) and bool(timeline.second_of_pair[index + 1])
    if pair and timeline.arrival_s[index + 1] > timeline.arrival_s[index]:
        late = index + 1
    made = max(free, float(timeline.end_s[timeline.producer[late]]))
    found = []
    if made > free:
        cause = "upstream" if timeline.kind[late] == Kind.FORWARD else "downstream"
        found.append(Wait(rank, cause, free, made, index))
    arrived = min(max(made, float(timeline.arrival_s[late])), start)
    if arrived > made:
        found.append(Wait(rank, "transfer", made, arrived, index))
    if start > arrived:
        found.append(Wait(rank, "sending", arrived, start, index))
    return found


def waiting_s(timeline: Timeline) -> dict[str, npt.NDArray[np.float64]]:
    """Seconds of waiting by cause, each of shape [p]; with ``busy_s`` they add up to the span on every rank."""
    total = {cause: np.zeros(timeline.schedule.num_ranks) for cause in CAUSES}
    for wait in waits(timeline):
        total[wait.cause][wait.rank] += wait.end_s - wait.start_s
    return total


def culprit(timeline: Timeline) -> int | None:
    """The rank that waits least, all causes together: the one the others wait for.

    None where no rank stands out: where the least waiting is within a hundredth of the span of the second least.
    """
    used = timeline.busy_s + timeline.sending_s
    most = np.sort(used)[::-1]
    if len(most) < 2 or most[0] - most[1] < 0.01 * timeline.span_s:
        return None
    return int(used.argmax())
