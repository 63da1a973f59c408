"""The pipeline of a step that was run and recorded, in the form of a simulated one: the same pictures and the same causes of waiting.

A recording has a span per computation, and a receive per message with the moment at which its rank had it. What a rank waits for follows
from these: until the producer's span ends it is ``upstream`` or ``downstream``, then ``transfer`` until the message is there, and the
rest is the rank's own program (``sending``). Ranks of one host share a clock; of several, the recordings' offsets to the wall clock are
added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshwright.errors import InputError, Mistake
from meshwright.recording.events import Event
from meshwright.recording.read import Recording, read_recordings
from meshwright.schedule import Action, Kind, Schedule
from meshwright.schedule.check import check_computations
from meshwright.schedule.unit_time import input_of
from meshwright.spec import names
from meshwright.timeline.costs import uniform_costs
from meshwright.timeline.events import Timeline

if TYPE_CHECKING:
    from meshwright.timeline.step import Step

__all__ = ["Measured", "check_comparable", "measured_step", "read_measured"]

KINDS = {
    "forward": Kind.FORWARD,
    "backward": Kind.BACKWARD,
    "backward_input": Kind.BACKWARD_INPUT,
    "backward_weight": Kind.BACKWARD_WEIGHT,
}
"""The runtime's words for its computations."""

Result = tuple[bool, int, int]


@dataclass(frozen=True)
class Measured:
    """One step of one pipeline.

    A pair of DualPipe is run one after the other here, so it has two spans.

    Attributes:
        timeline: starts at 0; the ranks of its schedule are pipeline ranks. step: its number in the recording.
        ranks: global ranks, by pipeline rank. step_s: from the first event of the step on any of them to its last.
    """

    timeline: Timeline
    step: int
    ranks: tuple[int, ...]
    step_s: float


def read_measured(folder: Path, step: int | None = None) -> Measured:
    """The pipeline that global rank 0 is in, or the first that was recorded.

    Args:
        step: its number; None for the last one, which is warm.

    Raises:
        InputError: no recordings, no such step, ranks missing, or no computations of a pipeline in it.
    """
    return measured_step(read_recordings(folder), str(folder), step)


def measured_step(recordings: Sequence[Recording], source: str, step: int | None = None) -> Measured:
    """See read_measured; source: a name for messages."""
    pipeline = _one_pipeline(recordings)
    known = sorted(
        {event.step for recording in pipeline for event in recording.events if event.kind == "compute" and event.step is not None}
    )
    if not known:
        raise InputError([Mistake(source, "kind", None, "events of kind compute", "a recording of `prove --record` with pp > 1 has them",
                                  "has no computations of a pipeline")])  # fmt: skip
    chosen = known[-1] if step is None else step
    if chosen not in known:
        raise InputError([Mistake(source, "step", step, f"{known[0]} to {known[-1]}", problem="was not recorded")])
    events = [_of_step(recording, chosen, _offset(recording, pipeline)) for recording in pipeline]
    if missing := [recording.rank for recording, mine in zip(pipeline, events, strict=True) if not _computations(mine)]:
        raise InputError(
            [Mistake(source, "rank", missing[0], "a whole step on every rank", problem=f"has no computations in step {chosen}")]
        )
    moments = (moment for mine in events for event in mine for moment in (event.enqueued_s, event.started_s))
    begin = min(moment for moment in moments if moment is not None)
    end = max(event.completed_s or event.enqueued_s or begin for mine in events for event in mine)
    return Measured(_timeline(events, source), chosen, tuple(recording.rank for recording in pipeline), end - begin)


def check_comparable(measured: Measured, predicted: Step, source: str) -> None:
    """Whether both are of a pipeline of the same form; sizes may differ, as in a proof that is scaled.

    Raises:
        InputError: other numbers of ranks, chunks or micro-batches.
    """
    ours, theirs = predicted.timeline.schedule, measured.timeline.schedule
    pairs = {
        "pipeline ranks": (theirs.num_ranks, ours.num_ranks),
        "chunks": (theirs.num_chunks, ours.num_chunks),
        "micro-batches": (theirs.num_micro_batches, ours.num_micro_batches),
    }
    hint = "a proof of a large plan is scaled: its certificate says to which layout and batch, which can be planned, too"
    mistakes = [
        Mistake(source, key, found, str(wanted), hint, "is not the plan's") for key, (found, wanted) in pairs.items() if found != wanted
    ]
    if mistakes:
        raise InputError(mistakes)


def _one_pipeline(recordings: Sequence[Recording]) -> list[Recording]:
    """Those at the same place on every other axis as the first, by place in the pipeline."""

    def elsewhere(recording: Recording) -> dict[str, int]:
        return {axis: place for axis, place in recording.header.coordinates.items() if axis != "pp"}

    found = [recording for recording in recordings if elsewhere(recording) == elsewhere(recordings[0])]
    return sorted(found, key=lambda recording: recording.header.coordinates.get("pp", 0))


def _offset(recording: Recording, all_of_them: Sequence[Recording]) -> float:
    """To a clock that all ranks share."""
    one_host = len({other.header.host for other in all_of_them}) == 1
    return 0.0 if one_host else recording.header.wall_offset_s


def _of_step(recording: Recording, step: int, offset_s: float) -> list[Event]:
    def moved(seconds: float | None) -> float | None:
        return None if seconds is None else seconds + offset_s

    return [
        replace(event, enqueued_s=moved(event.enqueued_s), started_s=moved(event.started_s), completed_s=moved(event.completed_s))
        for event in recording.events
        if event.step == step
    ]


def _computations(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind == "compute" and event.op in KINDS and _is_timed(event)]


def _is_timed(event: Event) -> bool:
    return event.completed_s is not None and (event.started_s is not None or event.enqueued_s is not None)


def _action(event: Event) -> Action:
    assert event.chunk is not None and event.micro_batch is not None  # _schedule has looked
    return Action(KINDS[event.op], event.chunk, event.micro_batch)


def _schedule(computations: Sequence[Sequence[Event]], source: str) -> Schedule:
    """What the ranks did, in their order. Raises InputError where that is no whole step of a pipeline."""
    for rank, event in ((rank, event) for rank, mine in enumerate(computations) for event in mine):
        if event.chunk is None or event.micro_batch is None:
            key, legal = f"rank {rank}, event {event.index}", "a chunk and a micro-batch"
            raise InputError([Mistake(source, key, event.op, legal, "events as `prove --record` writes them", "lacks one of them")])
    actions = tuple(tuple(_action(event) for event in mine) for mine in computations)
    places = {action.chunk: rank for rank, mine in enumerate(actions) for action in mine}
    passed: dict[int, set[int]] = {}
    for action in (action for mine in actions for action in mine):
        passed.setdefault(action.chunk, set()).add(action.micro_batch)
    m = 1 + max(map(max, passed.values()))
    if sorted(places) != list(range(len(places))):
        raise InputError([Mistake(source, "chunk", sorted(places), "every chunk of the pipeline", problem="are not all of the chunks")])
    copies = 2 if 2 * len(passed[0]) == m and len(places) % 2 == 0 and m > 1 else 1
    schedule = Schedule(source, len(actions), m, tuple(places[chunk] for chunk in range(len(places))), actions, copies)
    if m > len(actions) * max(map(len, actions)):
        raise InputError(
            [Mistake(source, "micro-batch", m - 1, "micro-batches numbered from 0 without gaps", problem="has no others before it")]
        )
    check_computations(schedule)
    return replace(schedule, name="recorded")


def _timeline(events: Sequence[Sequence[Event]], source: str) -> Timeline:
    computations = [_computations(mine) for mine in events]
    schedule = _schedule(computations, source)
    flat = [(rank, event, _action(event)) for rank, mine in enumerate(computations) for event in mine]
    begin = min(_start(event) for _, event, _ in flat)
    start, end = (np.array([moment(event) - begin for _, event, _ in flat]) for moment in (_start, _end))
    made: dict[Result, int] = {}
    for index, (_, _, action) in enumerate(flat):
        if action.kind != Kind.BACKWARD_WEIGHT:
            made[action.kind != Kind.FORWARD, action.chunk, action.micro_batch] = index
    needs = [input_of(schedule, action) for _, _, action in flat]
    producer = np.array([-1 if need is None else made[need] for need in needs], dtype=np.int64)
    arrivals = [_arrivals(mine) for mine in events]
    arrival = np.zeros(len(flat))
    for index, (rank, _, _) in enumerate(flat):
        need = needs[index]
        if need is not None:
            arrival[index] = min(arrivals[rank].get(need, begin) - begin, start[index])
    columns = np.array([(rank, action.kind, action.chunk, action.micro_batch) for rank, _, action in flat], dtype=np.int64)
    seconds = end - start
    forward_s, input_s, weight_s = (_typical(columns[:, 1], seconds, which) for which in _COSTS)
    return Timeline(
        schedule=schedule, costs=uniform_costs(schedule, forward_s, input_s, weight_s), rank=columns[:, 0], kind=columns[:, 1],
        chunk=columns[:, 2], micro_batch=columns[:, 3], second_of_pair=np.zeros(len(flat), dtype=np.bool_), start_s=start, end_s=end,
        producer=producer, arrival_s=arrival, held_s=np.zeros(len(flat)),
    )  # fmt: skip


_COSTS = ((Kind.FORWARD,), (Kind.BACKWARD, Kind.BACKWARD_INPUT), (Kind.BACKWARD_WEIGHT,))


def _typical(kind: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64], which: tuple[Kind, ...]) -> float:
    """The median of some kinds of computation, 0 without any."""
    mine = seconds[np.isin(kind, which)]
    return float(np.median(mine)) if len(mine) else 0.0


def _start(event: Event) -> float:
    moment = event.started_s if event.started_s is not None else event.enqueued_s
    assert moment is not None
    return moment


def _end(event: Event) -> float:
    assert event.completed_s is not None
    return event.completed_s


def _arrivals(events: Sequence[Event]) -> Mapping[Result, float]:
    """When this rank had each message; a receive carries the chunk that it is for."""
    found: dict[Result, float] = {}
    for event in events:
        if event.op == "recv" and event.module == names.PIPELINE and event.chunk is not None and event.micro_batch is not None:
            gradient = event.phase == "backward_input"
            if event.completed_s is not None:
                found[gradient, event.chunk + (1 if gradient else -1), event.micro_batch] = event.completed_s
    return found
