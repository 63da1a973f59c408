"""Who is alone, where a group itself does not tell: one rank did this, the other that.

A parallel program does the same in all groups of an axis, and step after step. So the other groups of the axis are asked first: what they
did at this position is right. Then the group's own past: what followed, earlier, on the calls that precede this one.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from meshwright.recording.crosscheck import Divergence
from meshwright.recording.events import Event
from meshwright.recording.read import Recording

CONTEXT = 3
"""Calls before the one in question that must be the same for a place in the past to count; a layer has about as many."""


def settled(found: Divergence, recordings: Iterable[Recording]) -> tuple[tuple[int, ...], str]:
    """(culprits, the reason in a sentence); all ranks of the divergence and "" where nothing tells them apart."""
    known = list(recordings)
    for votes, reason in (
        (_siblings(found, known), f"the other groups of {found.axis} did there what rank {{}} did"),
        (_past(found, known), "rank {} went on as the group had done before after the same calls"),
    ):
        most = max(votes.values(), default=0)
        right = sorted(rank for rank, count in votes.items() if count == most > 0)
        wrong = tuple(sorted(set(found.events) - set(right)))
        if right and wrong:
            return wrong, reason.format(", ".join(map(str, right)))
    return found.ranks, ""


def left_out(found: Divergence, culprits: Sequence[int], recordings: Iterable[Recording]) -> bool:
    """Whether the culprits' call is the one that used to follow on that of the others: then they left that one out.

    It is asked where the job stopped at once, so that what came afterwards does not tell.
    """
    mine = {_deed(found.events[rank], timeless=True) for rank in culprits if rank in found.events}
    theirs = {_deed(event, timeless=True) for rank, event in found.events.items() if rank not in culprits}
    for recording in recordings:
        deeds = [_deed(event, timeless=True) for event in _of(recording, found.group)[: found.seq]]
        if any(before in theirs and after in mine for before, after in itertools.pairwise(deeds)):
            return not mine & theirs
    return False


def _siblings(found: Divergence, recordings: Sequence[Recording]) -> Mapping[int, int]:
    """Votes for each rank of the divergence by the ranks of the axis' other groups of the same size."""
    mine = next((group for recording in recordings for group in recording.header.groups if group.name == found.group), None)
    number = next((event.seq for event in found.events.values()), None)
    said: Counter[tuple[object, ...]] = Counter()
    for recording in recordings:
        for group in recording.header.groups:
            if mine is not None and group.axis == mine.axis and group.name != mine.name and len(group.ranks) == len(mine.ranks):
                said.update(_deed(event) for event in _of(recording, group.name) if event.seq == number)
    return {rank: said[_deed(event)] for rank, event in found.events.items()}


def _past(found: Divergence, recordings: Sequence[Recording]) -> Mapping[int, int]:
    """Votes by what followed on the same calls in the group's past."""
    followed: defaultdict[tuple[object, ...], Counter[tuple[object, ...]]] = defaultdict(Counter)
    before: dict[int, tuple[object, ...]] = {}
    for recording in recordings:
        if recording.rank in found.events:
            deeds = [_deed(event, timeless=True) for event in _of(recording, found.group)[: found.seq]]
            before[recording.rank] = tuple(deeds[-CONTEXT:])
            for end in range(CONTEXT, len(deeds)):
                followed[tuple(deeds[end - CONTEXT : end])][deeds[end]] += 1
    return {rank: followed[before.get(rank, ())][_deed(event, timeless=True)] for rank, event in found.events.items()}


def _of(recording: Recording, group: str) -> list[Event]:
    return [event for event in recording.events if event.kind == "collective" and event.group == group]


def _deed(event: Event, timeless: bool = False) -> tuple[object, ...]:
    """What was done, apart from with whom, and (timeless) in which step and micro-batch."""
    shape = event.shape[1:] if event.op == "all_to_all" else event.shape
    what = (event.op, event.reduce_op, event.dtype, shape, event.module, event.call_site)
    return what if timeless else (*what, event.step, event.micro_batch)
