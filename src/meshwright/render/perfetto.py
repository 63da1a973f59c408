"""A pipeline's timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Chrome's trace event format (JSON object form): a process per pipeline rank, in it one lane of computation, one of waiting and one
of messages; times in microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.render.grid import event_label
from meshwright.schedule.actions import Kind
from meshwright.timeline.waiting import waits

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline

__all__ = ["perfetto_trace"]

COMPUTE, WAITING, MESSAGES = 0, 1, 2
LANES = {COMPUTE: "compute", WAITING: "waiting", MESSAGES: "messages (pp)"}


def perfetto_trace(timeline: Timeline) -> dict[str, object]:
    """The object to write as JSON; a complete event ("X") per computation, wait and message."""
    events: list[dict[str, object]] = []
    for rank in range(timeline.schedule.num_ranks):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"pp rank {rank}"}})
        for lane, name in LANES.items():
            events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}})
    for index, event in enumerate(timeline):
        if not timeline.second_of_pair[index]:
            what = {"kind": Kind(event.kind).name.lower(), "chunk": event.chunk, "micro_batch": event.micro_batch}
            events.append(_span(event_label(timeline, index), event.rank, COMPUTE, event.start_s, event.end_s, what))
    for wait in waits(timeline):
        events.append(_span(wait.cause, wait.rank, WAITING, wait.start_s, wait.end_s, {}))
    events += _messages(timeline)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


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
