"""All traces of one job together, as the rules on slowness see them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from meshwright.diagnose.slow.meetings import Meeting, meetings_of
from meshwright.diagnose.slow.step_split import StepSplit, split_of
from meshwright.recording.trace import Trace

if TYPE_CHECKING:
    from meshwright.diagnose.evidence import Evidence

__all__ = ["Profile", "profile_of"]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The traces of a job, one per rank, in order of rank.

    Attributes:
        traces, splits: of each rank.
        meetings: collectives that two ranks or more are seen in.
        notes: what was left out and why.
    """

    traces: tuple[Trace, ...]
    splits: tuple[StepSplit, ...]
    meetings: tuple[Meeting, ...]
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(trace.rank for trace in self.traces)

    @property
    def world_size(self) -> int:
        """Of the job, as the traces say; at least what is there."""
        return max(max(trace.world_size for trace in self.traces), len(self.traces))

    @property
    def steps(self) -> int:
        """In the shortest trace."""
        return min(split.steps for split in self.splits)

    @property
    def window_s(self) -> float:
        """Of all ranks together."""
        return sum(split.window_s for split in self.splits)

    @cached_property
    def collectives(self) -> tuple[Meeting, ...]:
        """Meetings that are no messages: a message's waiting belongs to the pipeline's schedule."""
        return tuple(meeting for meeting in self.meetings if meeting.op != "send")

    @cached_property
    def waiting_s(self) -> Mapping[int, float]:
        """By rank, in collectives."""
        found = dict.fromkeys(self.ranks, 0.0)
        for meeting in self.collectives:
            for rank, waited in meeting.waiting_s.items():
                found[rank] += waited
        return found

    @cached_property
    def all_waiting_s(self) -> Mapping[int, float]:
        """By rank, in collectives and messages. A message waits at the end that came first."""
        found = dict(self.waiting_s)
        for meeting in self.meetings:
            if meeting.op == "send":
                for rank, waited in meeting.waiting_s.items():
                    found[rank] += waited
        return found

    @cached_property
    def caused_s(self) -> Mapping[int, float]:
        """By rank, the waiting of others in the collectives that it came last to."""
        found = dict.fromkeys(self.ranks, 0.0)
        for meeting in self.collectives:
            found[meeting.late_rank] += meeting.waited_s
        return found

    @cached_property
    def communicating_s(self) -> float:
        """Of all ranks together, in collectives."""
        return sum(sum(meeting.duration_s.values()) for meeting in self.collectives)

    def split(self, rank: int) -> StepSplit:
        return self.splits[self.ranks.index(rank)]

    def trace(self, rank: int) -> Trace:
        return self.traces[self.ranks.index(rank)]


def profile_of(evidence: Evidence) -> Profile | None:
    """The profile of what was read, None if there is no trace. Of traces of several jobs the one with the most ranks is taken."""
    traces, notes = _one_per_rank(evidence.of(Trace))
    both = [(trace, split_of(trace)) for trace in traces]
    notes += tuple(f"{trace.path}: nothing in it takes any time" for trace, split in both if split.window_s <= 0)
    both = [(trace, split) for trace, split in both if split.window_s > 0]
    if not both:
        return None
    used = tuple(trace for trace, _ in both)
    return Profile(traces=used, splits=tuple(split for _, split in both), meetings=meetings_of(used), notes=notes)


def _one_per_rank(traces: Sequence[Trace]) -> tuple[tuple[Trace, ...], tuple[str, ...]]:
    """The traces to use, in order of rank: of a rank that was traced more than once the latest."""
    notes = [f"{trace.path}: {note}" for trace in traces for note in trace.notes]
    notes += [f"{trace.path}: launches kernels and shows none; profile with ProfilerActivity.CUDA" for trace in traces if _blind(trace)]
    jobs: dict[int, list[Trace]] = defaultdict(list)
    for trace in traces:
        jobs[trace.world_size].append(trace)
    if not jobs:
        return (), ()
    size = max(jobs, key=lambda size: (len(jobs[size]), size))
    notes += [f"{trace.path}: of another job ({trace.world_size} ranks, not {size})" for trace in traces if trace.world_size != size]
    chosen: dict[int, Trace] = {}
    for trace in _numbered(jobs[size]):
        other = chosen.setdefault(trace.rank, trace)
        if other is not trace:
            earlier, later = sorted((other, trace), key=lambda each: each.origin_s)
            chosen[trace.rank] = later
            notes.append(f"{earlier.path}: rank {trace.rank} has a later trace, which was used")
    return tuple(chosen[rank] for rank in sorted(chosen)), tuple(notes)


def _blind(trace: Trace) -> bool:
    return bool(len(trace.launches)) and not len(trace.compute) and not trace.communications


def _numbered(traces: Sequence[Trace]) -> list[Trace]:
    """Traces that do not say their rank get the ranks that are left, in the order of the files."""
    told = {trace.rank for trace in traces if trace.rank_told}
    free = (rank for rank in count() if rank not in told)
    return [trace if trace.rank_told else replace(trace, rank=next(free)) for trace in traces]
