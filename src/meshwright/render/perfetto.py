"""A step's timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Chrome's trace event format (JSON object form): a process per pipeline rank, in it one lane of computation, one of waiting, one of
messages and one of data-parallel collectives; where parameters are sharded, a process more with the layers of one micro-batch; and
one with a lane for each axis that sends inside a layer.
Times are in microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.render.grid import event_label
from meshwright.schedule.actions import Kind
from meshwright.timeline.inside import LANES as INSIDE_LANES
from meshwright.timeline.waiting import waits

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline
    from meshwright.timeline.inside import InsideLayer
    from meshwright.timeline.layers import LayerOverlap
    from meshwright.timeline.report import TimelineReport
    from meshwright.timeline.step import RankEnd

__all__ = ["perfetto_trace", "step_trace"]

COMPUTE, WAITING, MESSAGES, COLLECTIVES = 0, 1, 2, 3
LANES = {COMPUTE: "compute", WAITING: "waiting", MESSAGES: "messages (pp)"}


def step_trace(report: TimelineReport) -> dict[str, object]:
    """The whole step: its pipeline, and on each rank what comes at the end."""
    step = report.step
    events = _pipeline(step.timeline)
    norm_s = step.reduced_s + step.scalars_s
    for rank, end in enumerate(step.ends):
        events.append(_named("thread_name", rank, "collectives (dp)", COLLECTIVES))
        events += _end(rank, end, step.reduced_s, norm_s)
    if report.layers is not None:
        events += _layers(report.layers, len(step.ends))
    if report.inside is not None:
        events += _inside(report.inside, len(step.ends) + 1)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _end(rank: int, end: RankEnd, reduced_s: float, norm_s: float) -> list[dict[str, object]]:
    spans = [(f"reduce {each.name}", COLLECTIVES, each.start_s, each.end_s) for each in end.reductions]
    last = max([end.computed_s, *(each.end_s for each in end.reductions)])
    optimized_s = norm_s + end.optimizer_s
    spans += [
        ("sums over tp, shared embedding, loads", COLLECTIVES, last, end.reduced_s), ("gradient norm", COLLECTIVES, reduced_s, norm_s),
        ("optimizer", COMPUTE, norm_s, optimized_s), ("gather parameters", COLLECTIVES, optimized_s, optimized_s + end.collect_s),
        ("end", WAITING, end.reduced_s, reduced_s),
    ]  # fmt: skip
    return [_span(name, rank, lane, start_s, end_s, {}) for name, lane, start_s, end_s in spans if end_s > start_s]


def _layers(layers: LayerOverlap, process: int) -> list[dict[str, object]]:
    """One micro-batch's forward, then its backward, all layers of a chunk: a lane of compute and one of gathers and scatters."""
    lanes = {"compute": 0, "gather": 1, "scatter": 1}
    events = [
        _named("process_name", process, "layers of one micro-batch", 0),
        _named("thread_name", process, "compute", 0),
        _named("thread_name", process, "collectives (dp)", 1),
    ]
    begin = 0.0
    for direction in layers.directions:
        for piece in direction.whole.pieces:
            if piece.end_s > piece.start_s:
                name = f"{direction.name} {piece.name}" if piece.lane == "compute" else f"{piece.lane} {piece.name}"
                events.append(_span(name, process, lanes[piece.lane], begin + piece.start_s, begin + piece.end_s, {}))
        begin += direction.whole.span_s
    return events


def _inside(inside: InsideLayer, process: int) -> list[dict[str, object]]:
    """One layer's forward, then its backward."""
    events = [_named("process_name", process, f"inside one layer ({inside.label})", 0)]
    names = [LANES[COMPUTE], *(f"collectives ({axis})" for axis in INSIDE_LANES[1:])]
    events += [_named("thread_name", process, name, lane) for lane, name in enumerate(names)]
    begin = 0.0
    for one in inside.passes:
        for piece in one.pieces:
            lane = INSIDE_LANES.index(piece.lane)
            events.append(_span(f"{one.name} {piece.name}", process, lane, begin + piece.start_s, begin + piece.end_s, {}))
        begin += one.span_s
    return events


def perfetto_trace(timeline: Timeline) -> dict[str, object]:
    """The object to write as JSON; a complete event ("X") per computation, wait and message."""
    return {"traceEvents": _pipeline(timeline), "displayTimeUnit": "ms"}


def _named(what: str, process: int, name: str, lane: int) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}


def _pipeline(timeline: Timeline) -> list[dict[str, object]]:
    events: list[dict[str, object]] = []
    for rank in range(timeline.schedule.num_ranks):
        events.append(_named("process_name", rank, f"pp rank {rank}", 0))
        events += [_named("thread_name", rank, name, lane) for lane, name in LANES.items()]
    for index, event in enumerate(timeline):
        if not timeline.second_of_pair[index]:
            what = {"kind": Kind(event.kind).name.lower(), "chunk": event.chunk, "micro_batch": event.micro_batch}
            events.append(_span(event_label(timeline, index), event.rank, COMPUTE, event.start_s, event.end_s, what))
    for wait in waits(timeline):
        events.append(_span(wait.cause, wait.rank, WAITING, wait.start_s, wait.end_s, {}))
    return events + _messages(timeline)


def _messages(timeline: Timeline) -> list[dict[str, object]]:
    """On the sender's lane, from the end of the computation until the receiver has it."""
    found = []
    for index in np.flatnonzero(timeline.producer >= 0).tolist():
        source = int(timeline.producer[index])
        made, arrived = float(timeline.end_s[source]), float(timeline.arrival_s[index])
        sender, receiver = int(timeline.rank[source]), int(timeline.rank[index])
        if sender != receiver and arrived > made:
            name = f"{'activation' if timeline.kind[index] == Kind.FORWARD else 'gradient'} {int(timeline.micro_batch[index])}"
            found.append(_span(name, sender, MESSAGES, made, arrived, {"to_rank": receiver, "chunk": int(timeline.chunk[source])}))
    return found


def _span(name: str, rank: int, lane: int, start_s: float, end_s: float, args: dict[str, object]) -> dict[str, object]:
    return {"name": name, "ph": "X", "pid": rank, "tid": lane, "ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6, "args": args}
