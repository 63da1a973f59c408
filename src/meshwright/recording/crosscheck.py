"""Do the ranks of each group agree on what they did together? Finds the first place where they do not.

Backends check little of this. gloo lets pass, without an error and with wrong numbers: dtypes of equal size, two
collectives of the same shape in swapped order, all_to_all splits that do not fit each other, a receive that is larger
than its send (seen on torch 2.13). So the check compares, at each position of each group: op, reduce op, dtype, shape,
root, splits, module, call site, step and micro-batch; and for P2P, each pair's sends with its receives.

After its first divergence a group's ranks are out of step, so one divergence is told per group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.recording.events import Event, Group
from meshwright.recording.read import Recording

Cause = Literal["op", "reduce_op", "dtype", "shape", "root", "splits", "order", "call_site", "progress", "missing", "extra", "unmatched"]

Calls = Mapping[int, Sequence[Event]]
"""What each rank did in one group, in order."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first place at which the ranks of a group, or of a P2P pair, disagree.

    Attributes:
        group, axis: where.
        seq: the position in the group (for P2P: among the pair's messages).
        cause: what differs. "order": the same calls in another order. "missing": a rank that left a call out, or stopped
            earlier than the others. "extra": one that made a call that the others did not. "progress": the same call in
            another step or micro-batch. "unmatched": a send without a receive or the reverse.
        ranks: those that differ from the majority; all of the group where there is none.
        events: what each rank did there; a rank that did nothing is left out.
        message: one line that names all of it.
    """

    group: str
    axis: str
    seq: int
    cause: Cause
    ranks: tuple[int, ...]
    events: Mapping[int, Event]
    message: str


def cross_check(recordings: Iterable[Recording]) -> list[Divergence]:
    """Every group's and P2P pair's first divergence, the earliest first: it is the likely cause of the others.

    Ranks that left no recording are not compared (read.missing_ranks tells them).
    """
    known = {recording.rank: recording for recording in recordings}
    found = []
    for group in _groups(known.values()):
        calls = {rank: _calls(known[rank], group.name) for rank in group.ranks if rank in known}
        divergence = _check_group(group, calls)
        if divergence is not None:
            found.append(divergence)
        found.extend(_check_pairs(group, known))
    return sorted(found, key=lambda divergence: (_clock(divergence, known), divergence.group, divergence.seq))


def _clock(divergence: Divergence, known: Mapping[int, Recording]) -> float:
    times = [
        event.enqueued_s + known[rank].header.wall_offset_s for rank, event in divergence.events.items() if event.enqueued_s is not None
    ]
    return min(times, default=float("inf"))


def _groups(recordings: Iterable[Recording]) -> Iterator[Group]:
    groups: dict[str, Group] = {}
    for recording in recordings:
        for group in recording.header.groups:
            groups.setdefault(group.name, group)
    return iter(groups.values())


def _calls(recording: Recording, group: str) -> list[Event]:
    return [event for event in recording.events if event.kind == "collective" and event.group == group]


def _check_group(group: Group, calls: Calls) -> Divergence | None:
    if len(calls) < 2:
        return None
    longest = max(map(len, calls.values()))
    for seq in range(longest):
        here = {rank: events[seq] for rank, events in calls.items() if seq < len(events)}
        if len(here) < len(calls):
            return _missing(group, seq, here, calls)
        cause = _difference(group, here)
        if cause is not None:
            return _diverged(group, seq, cause, here, calls)
    return None


def _missing(group: Group, seq: int, here: dict[int, Event], calls: Calls) -> Divergence:
    absent = tuple(rank for rank in calls if rank not in here)
    others = next(iter(here.items()))
    last = [f"rank {rank} ended after {what_of(calls[rank][-1]) if calls[rank] else 'nothing'}" for rank in absent]
    message = (
        f"{group.name}, collective {seq}: {_ranks(absent)} did not take part in {what_of(others[1])} of rank {others[0]}; "
        + "; ".join(last)
    )
    return Divergence(group=group.name, axis=group.axis, seq=seq, cause="missing", ranks=absent, events=here, message=message)


def _difference(group: Group, here: Mapping[int, Event]) -> Cause | None:
    events = list(here.values())
    first = events[0]
    if any(event.op != first.op for event in events):
        return "op"
    # Where the two orders of a swap differ in shape as well, the shape is what broke; call sites tell the rest.
    comparisons: list[tuple[Cause, list[object]]] = [
        ("reduce_op", [event.reduce_op for event in events]),
        ("dtype", [event.dtype for event in events]),
        ("shape", [comparable_shape(event) for event in events]),
        ("root", [event.peer for event in events]),
        ("call_site", [(event.module, event.call_site) for event in events]),
        ("progress", [(event.step, event.micro_batch) for event in events]),
    ]
    for cause, values in comparisons:
        if any(value != values[0] for value in values):
            return cause
    return None if _splits_fit(group, here) else "splits"


def comparable_shape(event: Event) -> tuple[int, ...]:
    """With splits, all_to_all may send another number of rows from each rank; the rest of the shape must agree."""
    return event.shape[1:] if event.op == "all_to_all" and event.input_splits else event.shape


def _splits_fit(group: Group, here: Mapping[int, Event]) -> bool:
    """What rank a sends to b is what b expects from a, for every pair that left a recording."""
    if not any(event.input_splits for event in here.values()):
        return True
    if any(len(event.input_splits) != len(group.ranks) or len(event.output_splits) != len(group.ranks) for event in here.values()):
        return False
    place = {rank: number for number, rank in enumerate(group.ranks)}
    return all(
        here[a].input_splits[place[b]] == here[b].output_splits[place[a]]
        for a in here
        for b in here
    )  # fmt: skip


def _diverged(group: Group, seq: int, cause: Cause, here: Mapping[int, Event], calls: Calls) -> Divergence:
    ranks = _unlike_most(here) if cause != "splits" else _splits_culprits(group, here)
    if cause != "splits":
        # Whatever differs first between two calls is not the fault where the calls themselves are out of step.
        cause = out_of_step(calls, seq, ranks) or cause
    told = "; ".join(f"{_ranks(same)}: {what_of(here[same[0]])}" for same in alike(here))
    what = _OUT_OF_STEP[cause].format(_ranks(ranks)) if cause in _OUT_OF_STEP else f"ranks differ in {DIFFERENCES[cause]}"
    message = f"{group.name}, collective {seq}: {what}: {told}"
    return Divergence(group=group.name, axis=group.axis, seq=seq, cause=cause, ranks=ranks, events=dict(here), message=message)


_OUT_OF_STEP: dict[Cause, str] = {"missing": "{} left a call out", "extra": "{} made one call too many"}


def out_of_step(calls: Calls, seq: int, ranks: Sequence[int]) -> Cause | None:
    """What puts ``ranks`` out of step with the others of ``calls`` from position ``seq`` on.

    "order": the same calls in another order; "missing" or "extra": they go on like the others one call later or earlier; None: neither.
    """
    if _same_calls_in_another_order(calls, seq):
        return "order"
    others = [rank for rank in calls if rank not in ranks]
    if not others:
        return None
    most = calls[others[0]][seq : seq + 2]
    mine = [calls[rank][seq : seq + 2] for rank in ranks]
    if len(most) == 2 and all(signature(part[0]) == signature(most[1]) for part in mine):
        return "missing"
    if all(len(part) == 2 and signature(part[1]) == signature(most[0]) for part in mine):
        return "extra"
    return None


DIFFERENCES: dict[Cause, str] = {
    "op": "the operation", "reduce_op": "the reduction", "dtype": "dtype", "shape": "shape", "root": "the root",
    "splits": "splits: what is sent is not what is expected", "order": "the order of their calls",
    "call_site": "which call this is, though shapes agree", "progress": "the step or micro-batch of this call",
}  # fmt: skip
"""In what ranks differ, in words."""


def _same_calls_in_another_order(calls: Calls, start: int) -> bool:
    """Whether every rank makes the same calls from ``start`` on, if one looks only at the part up to where they meet again."""
    longest = min(len(events) for events in calls.values())
    counts: dict[int, Counter[tuple[object, ...]]] = {rank: Counter() for rank in calls}
    for seq in range(start, longest):
        for rank, events in calls.items():
            counts[rank][signature(events[seq])] += 1
        first, *rest = counts.values()
        if all(count == first for count in rest):
            return True
    return False


def signature(event: Event) -> tuple[object, ...]:
    """What must be the same on all ranks of a group for two calls to be one collective."""
    what = (event.op, event.reduce_op, event.dtype, comparable_shape(event), event.peer)
    return (*what, event.module, event.call_site, event.step, event.micro_batch)


def alike(here: Mapping[int, Event]) -> list[list[int]]:
    """Ranks that did the same thing, the largest set first."""
    sets: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, event in here.items():
        sets[(*signature(event), event.shape, event.input_splits, event.output_splits)].append(rank)
    return sorted(sets.values(), key=lambda ranks: (-len(ranks), ranks))


def _unlike_most(here: Mapping[int, Event]) -> tuple[int, ...]:
    sets: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, event in here.items():
        sets[signature(event)].append(rank)
    most = max(len(ranks) for ranks in sets.values())
    majority = [ranks for ranks in sets.values() if len(ranks) == most]
    if len(majority) > 1:
        return tuple(sorted(here))
    return tuple(sorted(set(here) - set(majority[0])))


def _splits_culprits(group: Group, here: Mapping[int, Event]) -> tuple[int, ...]:
    """The ranks of the pairs that do not fit; one rank alone if all such pairs have it in common."""
    place = {rank: number for number, rank in enumerate(group.ranks)}
    size = len(group.ranks)
    wrong = tuple(r for r, e in here.items() if len(e.input_splits) != size or len(e.output_splits) != size)
    if wrong:
        return wrong
    pairs = [{a, b} for a in here for b in here if here[a].input_splits[place[b]] != here[b].output_splits[place[a]]]
    shared = set.intersection(*pairs) if pairs else set()
    return tuple(sorted(shared or set().union(*pairs)))


def _check_pairs(group: Group, known: Mapping[int, Recording]) -> Iterator[Divergence]:
    """The k-th send from a to b with a tag must meet the k-th receive on b from a with that tag."""
    sends: defaultdict[tuple[int, int, int | None], list[Event]] = defaultdict(list)
    receives: defaultdict[tuple[int, int, int | None], list[Event]] = defaultdict(list)
    for rank in group.ranks:
        for event in known[rank].events if rank in known else ():
            if event.kind != "p2p" or event.group != group.name or event.peer is None or event.peer not in known:
                continue
            if event.op == "send":
                sends[rank, event.peer, event.tag].append(event)
            else:
                receives[event.peer, rank, event.tag].append(event)
    for pair in sorted(sends.keys() | receives.keys(), key=str):
        divergence = _check_pair(group, pair, sends[pair], receives[pair])
        if divergence is not None:
            yield divergence


def _check_pair(group: Group, pair: tuple[int, int, int | None], sends: Sequence[Event], receives: Sequence[Event]) -> Divergence | None:
    source, target, tag = pair
    for seq in range(max(len(sends), len(receives))):
        here = {rank: events[seq] for rank, events in ((source, sends), (target, receives)) if seq < len(events)}
        cause: Cause | None = None
        if len(here) < 2:
            cause = "unmatched"
        elif sends[seq].dtype != receives[seq].dtype:
            cause = "dtype"
        elif sends[seq].shape != receives[seq].shape:
            cause = "shape"
        if cause is None:
            continue
        absent = tuple(rank for rank in (source, target) if rank not in here)
        told = "; ".join(f"rank {rank}: {what_of(event)}" for rank, event in here.items())
        what = "has no counterpart on " + _ranks(absent) if absent else f"differs in {cause} on its two ends"
        message = f"{group.name}, message {seq} from rank {source} to rank {target}, tag {tag}, {what}: {told}"
        ranks = absent or (source, target)
        return Divergence(group=group.name, axis=group.axis, seq=seq, cause=cause, ranks=ranks, events=here, message=message)
    return None


def what_of(event: Event, place: bool = True) -> str:
    """``all_reduce(sum) float32[4, 8] in layers.0.mlp.down at model.py:12``; without where it is called only what is called."""
    reduce = f"({event.reduce_op})" if event.reduce_op else ""
    splits = f" splits {list(event.input_splits)} -> {list(event.output_splits)}" if event.input_splits else ""
    root = f" root {event.peer}" if event.kind == "collective" and event.peer is not None else ""
    called = f"{event.op}{reduce} {event.dtype}{list(event.shape)}{root}{splits}"
    module = f" in {event.module}" if event.module else ""
    site = f" at {event.call_site}" if event.call_site else ""
    places = (("step", event.step), ("micro-batch", event.micro_batch))
    when = "".join(f", {name} {number}" for name, number in places if number is not None)
    return f"{called}{module}{site}{when}" if place else called


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
