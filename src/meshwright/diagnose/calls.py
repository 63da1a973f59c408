"""What one rank called, in one form for recordings, flight-recorder dumps and logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.recording.events import Event, Group
from meshwright.recording.read import Recording


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One collective, send or receive.

    Attributes:
        event: what it was, in the recording's terms; ``index`` orders the calls of a rank, ``seq`` numbers those of a group.
        done: whether the rank saw it complete; None where the source does not tell.
        sent_elements, received_elements: of the tensors passed in and filled; None where the source does not tell. Over a whole
            all_to_all they add up to the same.
    """

    event: Event
    done: bool | None
    sent_elements: int | None = None
    received_elements: int | None = None

    @property
    def place(self) -> tuple[str, str]:
        """(group, kind): what its number counts in."""
        return self.event.group, self.event.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """A rank's own count of the works of a group; None where the source does not tell. Sends and receives may be counted in it."""

    enqueued: int | None = None
    completed: int | None = None


@dataclass(frozen=True, kw_only=True)
class RankCalls:
    """What is known of a rank.

    Attributes:
        source: name of the file. kind: "recording", "dump" or "log".
        job: tells jobs apart, "" where the source does not.
        world_size: 0 where the source does not tell.
        coordinates: the rank's place on each mesh axis, where the source tells it.
        groups: that the rank is in, by name. A group that the source gives no members is left out.
        calls: in order; of a dump the last ones, perhaps only those not completed.
        status: by group.
        from_start: whether the calls begin with the first of the job.
        sees_p2p: whether the source would show sends and receives (gloo's dumps do not).
        tells_done: whether ``done`` can be relied on (gloo's dumps mark what has timed out like what is done).
        torn: whether the file ends in the middle of a line.
        remarks: what else the file says of the rank, in sentences. nccl_warnings: NCCL's own, in its words.
        watchdog_stuck: whether the heartbeat monitor says that torch's watchdog thread does not run.
    """

    rank: int
    source: str
    kind: str
    job: str = ""
    world_size: int = 0
    coordinates: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    status: Mapping[str, Status] = field(default_factory=dict)
    from_start: bool = False
    sees_p2p: bool = True
    tells_done: bool = True
    torn: bool = False
    remarks: tuple[str, ...] = ()
    nccl_warnings: tuple[str, ...] = ()
    watchdog_stuck: bool = False

    @cached_property
    def by_place(self) -> dict[tuple[str, str], tuple[Call, ...]]:
        """The calls of each group, collectives apart from P2P, in order."""
        found: dict[tuple[str, str], list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.place, []).append(call)
        return {place: tuple(calls) for place, calls in found.items()}

    @cached_property
    def pending(self) -> tuple[Call, ...]:
        """Calls that were begun and not completed, in order."""
        return tuple(call for call in self.calls if call.done is False)

    @property
    def last(self) -> Call | None:
        return self.calls[-1] if self.calls else None


def of_recording(recording: Recording) -> RankCalls:
    """A recording in this form."""
    header = recording.header
    calls = tuple(
        Call(event=event, done=event.completed_s is not None) for event in recording.events if event.kind in ("collective", "p2p")
    )
    return RankCalls(
        rank=header.rank, source=recording.path, kind="recording", job=header.plan_hash, world_size=header.world_size,
        coordinates=header.coordinates, groups={group.name: group for group in header.groups}, calls=calls,
        from_start=True, torn=bool(recording.bad_lines),
    )  # fmt: skip


def told(call: Call) -> str:
    """``all_reduce float32[4, 8] in layers.0.mlp.down at model.py:12``."""
    event = call.event
    reduce = f"({event.reduce_op})" if event.reduce_op else ""
    to = f" {'to' if event.op == 'send' else 'from'} rank {event.peer}" if event.kind == "p2p" and event.peer is not None else ""
    module = f" in {event.module}" if event.module else ""
    site = f" at {event.call_site}" if event.call_site else ""
    tensor = f" {event.dtype}{list(event.shape)}" if event.dtype else ""
    return f"{event.op}{reduce}{tensor}{to}{module}{site}"


def named(call: Call) -> str:
    """``all_reduce 39416``: what a finding calls a collective; a send or receive by its ends, for its number is its rank's own."""
    if call.event.kind == "p2p":
        return f"{call.event.op} {'to' if call.event.op == 'send' else 'from'} rank {call.event.peer}"
    seq = "" if call.event.seq is None else f" {call.event.seq}"
    return f"{call.event.op}{seq}"
