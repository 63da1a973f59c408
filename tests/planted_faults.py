"""Faults planted in the recordings of a run that was right: at a random rank and place, and played on until everybody waits or is done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.recording.events import Event
from meshwright.recording.read import Recording

SENDING = ("collective", "p2p")

FAULTS = ("stop", "leave out", "swap", "dtype", "shape", "op", "reduce op", "other module", "again")
"""stop: the rank does nothing any more. again: it makes a call twice. The others change one call, or leave it out, and go on."""


@dataclass(frozen=True)
class Planted:
    """What was done: to which rank, at which of its events."""

    fault: str
    rank: int
    event: Event
    recordings: tuple[Recording, ...]


def plant(recordings: list[Recording], fault: str, pick: random.Random) -> Planted | None:
    """One fault at a random place; None where the run has no place for it. Backends that stop at it leave what they had done until then."""
    by_rank = {recording.rank: [event for event in recording.events if event.kind in SENDING] for recording in recordings}
    places = [(rank, position) for rank, events in by_rank.items() for position in range(1, len(events)) if _suits(events, position, fault)]
    if not places:
        return None
    rank, position = pick.choice(places)
    event = by_rank[rank][position]
    by_rank[rank] = _changed(by_rank[rank], position, fault)
    played = play(by_rank, {recording.rank: recording for recording in recordings}, stops=(rank, position) if fault == "stop" else None)
    return Planted(fault, rank, event, tuple(played))


def _suits(events: list[Event], position: int, fault: str) -> bool:
    event = events[position]
    group = [other for other in events if other.group == event.group and other.kind == event.kind]
    if fault == "stop":
        return True
    if event.kind != "collective" or event.input_splits:
        return False
    if fault == "swap":
        after = _next_of_group(events, position)
        return after is not None and not events[after].input_splits and _what(events[after]) != _what(event)
    if fault in ("leave out", "again"):
        after = _next_of_group(events, position)
        return after is not None and _what(events[after]) != _what(event) and _what(group[group.index(event) - 1]) != _what(event)
    if fault == "reduce op":
        return event.reduce_op == "sum"
    return not (fault == "shape" and not event.shape)


def _next_of_group(events: list[Event], position: int) -> int | None:
    kind, group = events[position].kind, events[position].group
    return next((p for p in range(position + 1, len(events)) if (events[p].kind, events[p].group) == (kind, group)), None)


def _what(event: Event) -> tuple[object, ...]:
    return event.op, event.reduce_op, event.dtype, event.shape, event.module, event.call_site


def _changed(events: list[Event], position: int, fault: str) -> list[Event]:
    event, changed = events[position], list(events)
    if fault == "leave out":
        del changed[position]
    elif fault == "again":
        changed.insert(position, event)
    elif fault == "swap":
        after = _next_of_group(events, position)
        assert after is not None
        changed[position], changed[after] = changed[after], changed[position]
    elif fault != "stop":
        changed[position] = replace(event, **_other(event, fault))  # type: ignore[arg-type]
    return changed


def _other(event: Event, fault: str) -> Mapping[str, object]:
    if fault == "dtype":
        return {"dtype": "int64" if event.dtype != "int64" else "float64"}
    if fault == "shape":
        return {"shape": (event.shape[0] + 1, *event.shape[1:])}
    if fault == "op":
        return {"op": "all_gather" if event.op != "all_gather" else "all_reduce"}
    if fault == "reduce op":
        return {"reduce_op": "max"}
    return {"module": "layers.9.elsewhere"}


# --- what the ranks come to -------------------------------------------------------------------------------------


def play(calls: Mapping[int, list[Event]], headers: Mapping[int, Recording], stops: tuple[int, int] | None) -> list[Recording]:
    """Run the ranks until all are done or wait: a collective ends when all members have entered it with the same op and shape, a receive
    when its send was entered; who does not wait (asynchronous) goes on at once."""
    ranks = {rank: _Rank(events, stops[1] if stops and stops[0] == rank else len(events)) for rank, events in calls.items()}
    members = {group.name: group.ranks for recording in headers.values() for group in recording.header.groups}
    moved = True
    while moved:
        moved = False
        for rank in ranks.values():
            while rank.enter():
                moved = True
        for number, rank in ranks.items():
            moved |= rank.complete(lambda event, number=number: _fits(event, number, ranks, members))  # type: ignore[misc]
    return [replace(headers[number], events=tuple(rank.recorded())) for number, rank in ranks.items()]


class _Rank:
    """One rank: what it has entered, and of that what it has completed."""

    def __init__(self, events: list[Event], end: int) -> None:
        seqs: Counter[tuple[str, str]] = Counter()
        self.events: list[Event] = []
        for event in events[:end]:
            self.events.append(replace(event, index=len(self.events), seq=seqs[event.group, event.kind]))
            seqs[event.group, event.kind] += 1
        self.entered = 0
        self.completed: set[int] = set()
        self.places: dict[tuple[str, str], list[Event]] = {}

    def enter(self) -> bool:
        waits = self.entered and not self.events[self.entered - 1].asynchronous and self.entered - 1 not in self.completed
        if waits or self.entered == len(self.events):
            return False
        event = self.events[self.entered]
        self.places.setdefault((event.group, event.kind), []).append(event)
        self.entered += 1
        return True

    def complete(self, fits: object) -> bool:
        new = {event.index for event in self.events[: self.entered] if event.index not in self.completed and fits(event)}  # type: ignore[operator]
        self.completed |= new
        return bool(new)

    def recorded(self) -> list[Event]:
        return [
            replace(event, completed_s=event.enqueued_s if event.index in self.completed else None) for event in self.events[: self.entered]
        ]


def _fits(event: Event, rank: int, ranks: Mapping[int, _Rank], members: Mapping[str, tuple[int, ...]]) -> bool:
    if event.kind == "p2p":
        if event.op == "send":
            return True
        sends = [
            e for e in ranks[event.peer].places.get((event.group, "p2p"), []) if e.op == "send" and e.peer == rank and e.tag == event.tag
        ]  # type: ignore[index]
        before = [
            e
            for e in ranks[rank].places[event.group, "p2p"]
            if e.op == "recv" and e.peer == event.peer and e.tag == event.tag and e.index < event.index
        ]
        return len(sends) > len(before)
    met = [ranks[member].places.get((event.group, "collective"), []) for member in members[event.group]]
    if any(len(entered) <= (event.seq or 0) for entered in met):
        return False
    here = [entered[event.seq or 0] for entered in met]
    return len({(e.op, e.shape[1:] if e.op == "all_to_all" else e.shape) for e in here}) == 1
