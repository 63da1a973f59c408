"""Cases of rules that need a plan: the recordings of ranks that do what it says, but for one change.

recordings:
  as_planned: {model: gpt2-xl, cluster: h100-sxm, gpus: 2, seq: 512, batch: 2, layout: "dp=2 zero=1 mb=1"}
  change: {rank: 1, event: 3, payload_bytes: 64}       # one rank's event number 3 is another
  leave_out: 5                                         # all ranks leave their event number 5 out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.job import Asked, resolve
from meshwright.ledger.build import build
from meshwright.ledger.expected import Expected, expected_events
from meshwright.recording.events import Event, Group, Header
from meshwright.recording.read import Recording
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import PRECISIONS
from meshwright.units import DTYPE_BYTES


def as_planned(value: Mapping[str, Any]) -> Iterator[object]:
    """The plan, and one Recording per rank."""
    said = dict(value["as_planned"])
    job = resolve(Asked(subject=said.pop("model"), layouts=(said.pop("layout"),), **said))
    yield job
    assert job.workload is not None
    ledger = build(job.model, job.workload, job.layout, STACKS["meshwright"], PRECISIONS["bf16"])
    change = dict(value.get("change", {}))
    for rank in range(job.layout.world_size):
        expected = expected_events(ledger, rank)
        if "leave_out" in value:
            del expected[value["leave_out"]]
        recording = _recording(rank, job.layout.world_size, expected)
        if change.get("rank") == rank:
            number = change["event"]
            other = {key: item for key, item in change.items() if key not in ("rank", "event")}
            changed = replace(recording.events[number], **other)
            recording = replace(recording, events=(*recording.events[:number], changed, *recording.events[number + 1 :]))
        yield recording


def _recording(rank: int, world_size: int, expected: Sequence[Expected]) -> Recording:
    names = {event.axis: f"{event.axis}.{min(event.ranks)}" for event in expected}
    members = {event.axis: event.ranks for event in expected}
    seqs: Counter[str] = Counter()
    events = []
    for index, event in enumerate(expected):
        events.append(_event(index, event, names[event.axis], seqs[event.axis]))
        seqs[event.axis] += 1
    groups = tuple(Group(name=name, axis=axis, ranks=members[axis]) for axis, name in names.items())
    return Recording(header=Header(world_size=world_size, rank=rank, groups=groups), events=tuple(events), path=f"rank {rank}")


def _event(index: int, event: Expected, group: str, seq: int) -> Event:
    return Event(
        index=index, kind="p2p" if event.op in ("send", "recv") else "collective", step=event.step, micro_batch=event.micro_batch,
        phase=event.phase, module=event.module, op=event.op, reduce_op=event.reduce_op, group=group, seq=seq, peer=event.peer,
        dtype=event.dtype, shape=(int(event.payload_bytes // DTYPE_BYTES[event.dtype]),), payload_bytes=event.payload_bytes,
        enqueued_s=float(index), completed_s=index + 0.5,
    )  # fmt: skip
