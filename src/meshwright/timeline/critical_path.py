"""The chain of computations and messages that decides how long the pipeline takes: shorten anything else and nothing changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshwright.schedule.actions import Kind

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline

__all__ = ["Link", "critical_path"]


class Link(NamedTuple):
    """One piece of the chain: a computation (``what`` is its kind's name), a message ("transfer"), or a piece of the step's end."""

    what: str
    rank: int
    chunk: int
    micro_batch: int
    start_s: float
    end_s: float


def critical_path(timeline: Timeline, rank: int | None = None) -> list[Link]:
    """From the first computation to the last one, of this rank or of all; the pieces follow each other without a gap.

    Where a computation could start only when both its rank was free and its input was there at the same moment, the chain stays
    on the rank.
    """
    index = int((timeline.end_s if rank is None else np.where(timeline.rank == rank, timeline.end_s, -1.0)).argmax())
    if timeline.second_of_pair[index]:
        index -= 1
    chain: list[Link] = []
    while True:
        start = float(timeline.start_s[index])
        chain.append(_link(timeline, index, Kind(int(timeline.kind[index])).name.lower(), start, float(timeline.end_s[index])))
        previous = _previous_on_rank(timeline, index)
        if previous is not None:
            free = float(timeline.end_s[previous])
            held = start - free
            if held <= 0 or abs(free + _held(timeline, previous) - start) < 1e-12 * max(1.0, start):
                if held > 0:
                    chain.append(_link(timeline, previous, "transfer", free, start))
                index = previous
                continue
        late = _late_input(timeline, index)
        if late is None:
            return chain[::-1]
        producer = int(timeline.producer[late])
        made = float(timeline.end_s[producer])
        if start > made:
            chain.append(_link(timeline, producer, "transfer", made, start))
        index = producer - 1 if timeline.second_of_pair[producer] else producer


def _link(timeline: Timeline, index: int, what: str, start: float, end: float) -> Link:
    return Link(what, int(timeline.rank[index]), int(timeline.chunk[index]), int(timeline.micro_batch[index]), start, end)


def _previous_on_rank(timeline: Timeline, index: int) -> int | None:
    if index == 0 or timeline.rank[index - 1] != timeline.rank[index]:
        return None
    return index - 2 if timeline.second_of_pair[index - 1] else index - 1


def _held(timeline: Timeline, index: int) -> float:
    """How long a computation's messages hold its rank; those of both halves of a pair."""
    size = 2 if index + 1 < len(timeline) and timeline.second_of_pair[index + 1] else 1
    return float(timeline.held_s[index : index + size].sum())


def _late_input(timeline: Timeline, index: int) -> int | None:
    """The action (this one or its pair's second) whose input came last; None if it needs none."""
    group = [index]
    if index + 1 < len(timeline) and timeline.second_of_pair[index + 1]:
        group.append(index + 1)
    needing = [i for i in group if timeline.producer[i] >= 0]
    return max(needing, key=lambda i: float(timeline.arrival_s[i])) if needing else None
