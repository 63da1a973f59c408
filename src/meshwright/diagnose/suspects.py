"""Who is alone, where a group itself does not tell: one rank did this, the other that.

A parallel program does the same in all groups of an axis, and step after step. So the other groups of the axis are asked first: what they
did at this place is right. Then each rank's own steps: one whose step is not like its other steps is wrong. Then the group's calls at
other times: what follows there on the calls that precede this one, with less and less of what precedes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from meshwright.recording.crosscheck import Divergence, comparable_shape
from meshwright.recording.events import Event
from meshwright.recording.read import Recording

LONGEST_CONTEXT = 3
"""Calls before the one in question that are asked for first; a layer has about as many."""

ASPECTS: tuple[Callable[[Event], object], ...] = (
    lambda event: event.op,
    lambda event: event.reduce_op,
    lambda event: event.dtype,
    comparable_shape,
    lambda event: event.module,
    lambda event: event.call_site,
)
"""What may differ between two calls, apart from with whom and when."""

Deed = tuple[object, ...]


def settled(found: Divergence, recordings: Iterable[Recording]) -> tuple[tuple[int, ...], str, bool]:
    """(culprits, the reason in a sentence, whether it is a strong one); all ranks and "" where nothing tells them apart."""
    known = list(recordings)
    differing = [aspect for aspect in ASPECTS if len({aspect(event) for event in found.events.values()}) > 1]
    for votes, reason, strong in _polls(found, known, differing):
        most = max(votes.values(), default=0)
        right = sorted(rank for rank, count in votes.items() if count == most > 0)
        wrong = tuple(sorted(set(found.events) - set(right)))
        if right and wrong:
            return wrong, reason.format(", ".join(map(str, right))), strong
    return found.ranks, "", False


def left_out(found: Divergence, culprits: Sequence[int], recordings: Iterable[Recording]) -> bool:
    """Whether the culprits' call is the one that used to follow on that of the others: then they left that one out.

    It is asked where the job stopped at once, so that what came afterwards does not tell.
    """
    mine = {_deed(found.events[rank], ASPECTS) for rank in culprits if rank in found.events}
    theirs = {_deed(event, ASPECTS) for rank, event in found.events.items() if rank not in culprits}
    for recording in recordings:
        deeds = [_deed(event, ASPECTS) for event in calls_in(recording, found.group)[: found.seq]]
        if any(before in theirs and after in mine for before, after in itertools.pairwise(deeds)):
            return not mine & theirs
    return False


def calls_in(recording: Recording, group: str) -> list[Event]:
    """A rank's collectives in a group, in order."""
    return [event for event in recording.events if event.kind == "collective" and event.group == group]


Votes = Mapping[int, int]


Aspect = Callable[[Event], object]


def _polls(found: Divergence, recordings: Sequence[Recording], differing: Sequence[Aspect]) -> Iterator[tuple[Votes, str, bool]]:
    yield _siblings(found, recordings, differing), f"the other groups of {found.axis} did there what rank {{}} did", True
    lists = {recording.rank: calls_in(recording, found.group) for recording in recordings if recording.rank in found.events}
    yield consistent(lists), "rank {} did in this step what it does in its other steps", True
    for length in range(LONGEST_CONTEXT, 0, -1):
        votes = _other_times(found, lists, differing, length)
        yield votes, "rank {} did what the group does after the same calls at other times", False
    if not {ASPECTS[-2], ASPECTS[-1]} & set(differing):  # how often a place of the program is met says nothing of where it belongs
        yield _other_times(found, lists, ASPECTS, 0), "rank {} made the call as the group makes it at other times", False


def consistent(lists: Mapping[int, Sequence[Event]]) -> Votes:
    """1 for each rank whose steps are alike (the last one as far as it goes); nothing where no rank has two steps."""
    votes = {}
    for rank, events in lists.items():
        steps = [[_deed(event, ASPECTS) for event in part] for _, part in itertools.groupby(events, key=lambda event: event.step)]
        longest = max(steps, key=len, default=[])
        if len(steps) > 1:
            votes[rank] = int(all(step == longest for step in steps[:-1]) and steps[-1] == longest[: len(steps[-1])])
    return votes if len(votes) == len(lists) else {}


def _siblings(found: Divergence, recordings: Sequence[Recording], differing: Sequence[Aspect]) -> Votes:
    """Votes for each rank of the divergence by the ranks of the axis' other groups of the same size.

    Only by those of the same pipeline stage that had done the same until then: another stage does other things.
    """
    group = next((group for recording in recordings for group in recording.header.groups if group.name == found.group), None)
    mine = next((recording for recording in recordings if recording.rank in found.events), None)
    if group is None or mine is None:
        return {}
    past = _places(calls_in(mine, found.group)[: found.seq])
    said: Counter[Deed] = Counter()
    for recording in recordings:
        if recording.header.coordinates.get("pp") == mine.header.coordinates.get("pp"):
            for other in recording.header.groups:
                if other.axis == group.axis and other.name != group.name and len(other.ranks) == len(group.ranks):
                    events = calls_in(recording, other.name)
                    if len(events) > found.seq and _places(events[: found.seq]) == past:
                        said[_deed(events[found.seq], differing)] += 1
    return {rank: said[_deed(event, differing)] for rank, event in found.events.items()}


def _places(events: Sequence[Event]) -> list[Deed]:
    """Which calls of the program these are."""
    return [(event.op, event.module, event.call_site, event.step, event.micro_batch) for event in events]


def _other_times(found: Divergence, lists: Mapping[int, Sequence[Event]], aspects: Sequence[Aspect], length: int) -> Votes:
    """Votes by what follows on the same ``length`` calls elsewhere in the lists of the group's ranks."""
    followed: Counter[tuple[tuple[Deed, ...], Deed]] = Counter()
    before: dict[int, tuple[Deed, ...]] = {}
    for rank, events in lists.items():
        places = [(event.op, event.module) for event in events]
        before[rank] = tuple(places[max(0, found.seq - length) : found.seq])
        for end in range(length, len(events)):
            if end != found.seq:
                followed[tuple(places[end - length : end]), _deed(events[end], aspects)] += 1
    return {rank: followed[before.get(rank, ()), _deed(event, aspects)] for rank, event in found.events.items()}


def _deed(event: Event, aspects: Sequence[Aspect]) -> Deed:
    return tuple(aspect(event) for aspect in aspects)
