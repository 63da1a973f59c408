"""One of our own recordings as a Trace: its collectives with their times, so that both are aligned over ranks alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.recording.trace import Call, Communication, Spans, Trace

if TYPE_CHECKING:
    from meshwright.recording.read import Recording

__all__ = ["trace_of_recording"]


def trace_of_recording(recording: Recording) -> Trace:
    """The collectives that were completed, from when they were enqueued to when they were done; no kernels, which no recording has."""
    header = recording.header
    groups = {group.name: group.ranks for group in header.groups}
    found = [
        Communication(
            start_s=event.enqueued_s, end_s=event.completed_s, op=event.op, library="recorded", kernel=event.op, stream=event.group,
            call=Call(
                op=event.op, group=event.group, ranks=groups.get(event.group, ()), seq=event.seq, payload_bytes=event.payload_bytes,
                dtype=event.dtype, peer=event.peer,
            ),
        )
        for event in recording.events
        if event.kind in ("collective", "p2p") and event.enqueued_s is not None and event.completed_s is not None
    ]  # fmt: skip
    return Trace(
        path=recording.path, rank=recording.rank, world_size=header.world_size, origin_s=header.wall_offset_s, host=header.host,
        compute=_nothing(), launches=_nothing(), annotations=_nothing(), operators=_nothing(), communications=tuple(found), groups=groups,
    )  # fmt: skip


def _nothing() -> Spans:
    import numpy as np

    whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
    return Spans(start_s=real, end_s=real, name=whole, lane=whole, link=whole, names=(), lanes=())
