"""What a rank was doing while the others waited for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.diagnose.slow import intervals
from meshwright.diagnose.slow.phases import data_loading
from meshwright.units import format_seconds

if TYPE_CHECKING:
    from meshwright.diagnose.slow.meetings import Meeting
    from meshwright.diagnose.slow.profile import Profile
    from meshwright.recording.trace import Trace

__all__ = ["doing"]


def doing(profile: Profile, meeting: Meeting) -> str:
    """A sentence on the late rank of a meeting, over the time that the longest waiting rank waited."""
    import numpy as np

    trace = profile.trace(meeting.late_rank)
    end_s = meeting.start_s[meeting.late_rank] - trace.origin_s
    start_s = end_s - max(meeting.waiting_s.values())
    span = end_s - start_s
    whole = np.array([[start_s, end_s]])
    computing = intervals.clipped(intervals.of(trace.compute.start_s, trace.compute.end_s), start_s, end_s)
    idle = intervals.subtraction(whole, computing)
    parts = [f"computed for {format_seconds(intervals.length(computing))}"]
    if loading := intervals.length(intervals.intersection(idle, data_loading(trace))):
        parts.append(f"waited {format_seconds(loading)} for its data loader")
    if named := _longest_annotation(trace, start_s, end_s):
        parts.append(f"its host was in `{named}` for most of it")
    before = start_s < 0
    told = f"In the {format_seconds(span)} before it came to {meeting.op} {meeting.number}, rank {meeting.late_rank} {', '.join(parts)}"
    return told + (" (its trace begins later than that)" if before else "")


def _longest_annotation(trace: Trace, start_s: float, end_s: float) -> str:
    """The innermost annotation that covers half of the span; "" if none does. Steps say nothing."""
    import numpy as np

    spans = trace.annotations
    spans = spans.where(~spans.named(lambda name: name.startswith("ProfilerStep")))
    covered = np.minimum(spans.end_s, end_s) - np.maximum(spans.start_s, start_s)
    rows = np.flatnonzero(covered >= (end_s - start_s) / 2)
    if not len(rows):
        return ""
    row = rows[np.argmin(spans.duration_s[rows])]
    return str(spans.names[spans.name[row]]).strip("# ")
