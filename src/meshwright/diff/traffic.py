"""Recorded events against expected ones, for each rank and group, in order.

Both lists of a group are aligned first, by what a call is (op, module, phase, step, micro-batch, chunk), so that one missing call is one
mismatch and not a shift of all that follow; aligned pairs are then compared in every other respect. What is missing in one group
and extra in another is one call in the wrong group; in the same group, one call out of order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from meshwright.diff.mismatch import Kind, Mismatch, in_order, make
from meshwright.ledger.expected import Expected
from meshwright.recording.events import Event
from meshwright.recording.read import Recording

SENDING = ("collective", "p2p")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """predicted, recorded: numbers of events, over all ranks that were compared. mismatches: first divergence first."""

    predicted: int
    recorded: int
    mismatches: tuple[Mismatch, ...]


def compare_traffic(expected: Mapping[int, Sequence[Expected]], recordings: Sequence[Recording], finished: bool = True) -> Traffic:
    """Every rank's recording against its list.

    Args:
        expected: by rank. finished: False where ranks are known to have ended early; then only what they did is judged, and the
            first event that each did not reach is told.
    """
    by_rank = {recording.rank: recording for recording in recordings}
    found: list[Mismatch] = []
    recorded = 0
    for rank, events in expected.items():
        recording = by_rank.get(rank)
        if recording is None:
            found += [make("unfinished", rank, 0, events[0], None, events[0].axis)] if events else []
            continue
        recorded += sum(event.kind in SENDING for event in recording.events)
        found += compare_rank(events, recording, finished)
    return Traffic(predicted=sum(map(len, expected.values())), recorded=recorded, mismatches=tuple(in_order(found)))


def compare_rank(expected: Sequence[Expected], recording: Recording, finished: bool = True) -> list[Mismatch]:
    """One rank's recording against its list, first divergence first."""
    groups = {group.name: group for group in recording.header.groups}
    wanted: dict[str, list[tuple[int, Expected]]] = defaultdict(list)
    for position, call in enumerate(expected):
        wanted[call.axis].append((position, call))
    done: dict[str, list[Event]] = defaultdict(list)
    for event in recording.events:
        if event.kind in SENDING:
            done[groups[event.group].axis if event.group in groups else event.group].append(event)
    members = {group.axis: group.ranks for group in groups.values()}
    found: list[Mismatch] = []
    for axis in dict.fromkeys([*wanted, *done]):
        mine = wanted.get(axis, [])
        if not finished:
            mine = mine[: len(done.get(axis, ()))]
        found += _compare_group(recording.rank, axis, mine, done.get(axis, []), members.get(axis))
    if not finished:
        found += _not_reached(recording.rank, wanted, done)
    return in_order(_moved(found))


def _not_reached(rank: int, wanted: Mapping[str, list[tuple[int, Expected]]], done: Mapping[str, list[Event]]) -> Iterator[Mismatch]:
    """Where a rank that ended early would have gone on."""
    left = [mine[len(done.get(axis, ()))] for axis, mine in wanted.items() if len(mine) > len(done.get(axis, ()))]
    if left:
        position, event = min(left, key=lambda pair: pair[0])
        yield make("unfinished", rank, position, event, None, event.axis)


def _key(event: Any) -> tuple[object, ...]:
    """What a call is, apart from its size."""
    return event.op, event.module, event.phase, event.step, event.micro_batch, event.chunk


def _compare_group(
    rank: int, axis: str, wanted: Sequence[tuple[int, Expected]], done: Sequence[Event], members: tuple[int, ...] | None
) -> Iterator[Mismatch]:
    before, after = [_key(event) for _, event in wanted], [_key(event) for event in done]
    if before == after:  # no alignment needed, and none is made of ten thousand equal keys
        blocks = [("equal", 0, len(before), 0, len(after))]
    else:
        blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()  # type: ignore[assignment]
    for _, start, stop, first, last in blocks:
        both = min(stop - start, last - first)
        for offset in range(both):
            position, event = wanted[start + offset]
            yield from _compare_call(rank, axis, position, event, done[first + offset], members)
        for position, event in wanted[start + both : stop]:
            yield make("missing", rank, position, event, None, axis)
        for recorded in done[first + both : last]:
            position = wanted[min(stop, len(wanted) - 1)][0] if wanted else 0
            yield make("extra", rank, position, None, recorded, axis)


def _compare_call(
    rank: int, axis: str, position: int, event: Expected, recorded: Event, members: tuple[int, ...] | None
) -> Iterator[Mismatch]:
    """The first thing in which a recorded call differs from the expected one."""
    checks: list[tuple[Kind, bool]] = [
        ("op", recorded.op == event.op),
        ("place", _key(recorded) == _key(event)),
        ("group", members == event.ranks),
        ("reduce_op", recorded.reduce_op == event.reduce_op),
        ("peer", event.peer is None or recorded.peer == event.peer),
        ("dtype", recorded.dtype == event.dtype),
        ("bytes", recorded.payload_bytes == event.payload_bytes),
        ("splits", not event.splits_known or _splits(recorded) == (event.input_splits, event.output_splits)),
    ]
    for kind, holds in checks:
        if not holds:
            yield make(kind, rank, position, event, recorded, axis)
            return


def _splits(event: Event) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return event.input_splits, event.output_splits


def _moved(found: Sequence[Mismatch]) -> Iterator[Mismatch]:
    """A missing and an extra call that are one call become one mismatch: in the wrong group, or out of order in its own."""
    extra = [m for m in found if m.kind == "extra"]
    for mismatch in found:
        if mismatch.kind == "missing" and mismatch.expected is not None:
            same = next((m for m in extra if m.recorded is not None and _same_call(mismatch.expected, m.recorded)), None)
            if same is not None:
                extra.remove(same)
                kind: Kind = "order" if same.axis == mismatch.axis else "group"
                yield make(kind, mismatch.rank, mismatch.position, mismatch.expected, same.recorded, mismatch.axis)
                continue
        if mismatch.kind != "extra":
            yield mismatch
    yield from extra


def _same_call(expected: Expected, recorded: Event) -> bool:
    return _key(expected) == _key(recorded) and (expected.dtype, expected.payload_bytes) == (recorded.dtype, recorded.payload_bytes)
