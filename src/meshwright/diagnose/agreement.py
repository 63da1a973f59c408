"""Whether ranks that worked together did the same things, shared by the rules on mismatches.

The check itself is recording/crosscheck.py's. Here its input is prepared (a dump shows only the last calls of each rank, so the lists of a
group are laid side by side by their numbers) and its answer judged: what is no fault is left out, and where as many ranks did one thing as
the other, the rest of the job says who is alone (suspects.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.diagnose.calls import Call, RankCalls
from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.job import JobCalls, job_of
from meshwright.diagnose.suspects import calls_in, left_out, settled
from meshwright.recording.crosscheck import DIFFERENCES, Cause, Divergence, alike, cross_check, out_of_step, what_of
from meshwright.recording.events import Event, Group, Header
from meshwright.recording.read import Recording


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A divergence with its culprits.

    Attributes:
        found: as the cross-check tells it. cause: what it is, judged against the culprits.
        ranks: the culprits. certain: whether a majority, or the rest of the job, tells them from the others.
        reason: why they are the ones, "" where a majority of the group tells.
    """

    found: Divergence
    cause: Cause
    ranks: tuple[int, ...]
    certain: bool
    reason: str = ""


def disagreements(evidence: Evidence) -> tuple[Disagreement, ...]:
    """Of all groups and pairs of the job, the earliest first."""
    recordings = evidence.derived(side_by_side)
    found = cross_check(recordings)
    blind = {each.group for each in found if _only_sites(each, recordings)}
    if blind:
        # Ranks may well call from different lines: what else differs in these groups is found without them.
        found = [each for each in found if each.group not in blind]
        found += [each for each in cross_check([_without_sites(recording, blind) for recording in recordings]) if each.group in blind]
    kept = [each for each in found if _is_fault(each)] + list(_uneven_totals(evidence.derived(job_of)))
    return tuple(sorted((_judged(each, recordings) for each in kept), key=lambda each: _when(each.found)))


def side_by_side(evidence: Evidence) -> tuple[Recording, ...]:
    """What is compared: the recordings, or the part of the dumps that all ranks of a group still have."""
    job = evidence.derived(job_of)
    return tuple(_side_by_side(record, job) for record in job.ranks.values())


def calls_of(evidence: Evidence, group: str) -> dict[int, list[Event]]:
    """The collectives of a group that are compared, by rank."""
    return _calls_of(group, evidence.derived(side_by_side))


def hits(evidence: Evidence, *causes: Cause) -> Iterator[Hit]:
    """The first disagreement, if it is of one of these causes: what comes after it follows from it."""
    for first in evidence.derived(disagreements)[:1]:
        if first.cause in causes:
            op = (first.found.events.get(first.ranks[0]) or next(iter(first.found.events.values()))).op
            number = _number(first.found)  # the source's, where the cross-check counts from what it was given
            message = first.found.message.replace(f", collective {first.found.seq}:", f", collective {number}:", 1)
            told = (message, first.reason) if first.reason else (message,)
            others = [rank for rank in first.found.events if rank not in first.ranks]
            yield Hit(
                ranks=first.ranks, group=first.found.group, collective=f"{op} {number}", evidence=told,
                confidence="high" if first.certain else "medium", headline="" if others else _who_did_what(first, number),
                words={"others": f"rank {others[0]}" if len(others) == 1 else "the others"},
            )  # fmt: skip


MOST_SIDES = 3
"""Ways of doing a call that a headline tells; the evidence has all."""


def _who_did_what(tied: Disagreement, number: int) -> str:
    """``Call 7 of tp.0 was all_reduce(sum) float32[8] on rank 0 and broadcast float32[8] root 0 on rank 1: ...``."""
    if tied.cause not in DIFFERENCES or tied.cause == "splits":  # whose rules blame nobody
        return ""
    events = tied.found.events
    sides = [f"{what_of(events[same[0]], place=tied.cause == 'call_site')} on {ranks_text(same)}" for same in alike(events)]
    if len(sides) > MOST_SIDES:
        sides = [*sides[:MOST_SIDES], f"something else on {len(sides) - MOST_SIDES} more"]
    did = f"{', '.join(sides[:-1])} and {sides[-1]}"
    return f"Call {number} of {tied.found.group} was {did}: they differ in {DIFFERENCES[tied.cause]}, and nothing here tells which is right"


def _number(found: Divergence) -> int:
    """As the source numbers it."""
    return next((event.seq for event in found.events.values() if event.seq is not None), found.seq)


def _when(found: Divergence) -> tuple[float, str, int]:
    times = [event.enqueued_s for event in found.events.values() if event.enqueued_s is not None]
    return min(times, default=float("inf")), found.group, found.seq


# --- what goes in -----------------------------------------------------------------------------------------------


def _side_by_side(record: RankCalls, job: JobCalls) -> Recording:
    """The rank's calls as a recording; of each group from the first number that all its ranks still have."""
    kept: list[Event] = []
    for (group, kind), calls in record.by_place.items():
        if record.kind == "recording":
            kept += [call.event for call in calls]
        elif kind == "p2p":
            kept += [call.event for call in calls if record.from_start or call.done is False]
        else:
            first = _first_shared(group, job)
            kept += [_without_rows(call.event) for call in calls if (call.event.seq or 0) >= first]
    groups = tuple(_member_groups(record, job))
    header = Header(world_size=job.world_size, rank=record.rank, groups=groups, coordinates=dict(record.coordinates))
    return Recording(header=header, events=tuple(sorted(kept, key=lambda event: event.index)), path=record.source)


def _without_rows(event: Event) -> Event:
    """Dumps do not tell the splits of an all_to_all, so its rows may differ between ranks."""
    return replace(event, shape=event.shape[1:]) if event.op == "all_to_all" else event


def _member_groups(record: RankCalls, job: JobCalls) -> Iterator[Group]:
    """Groups that the rank called in: one whose calls are all forgotten is not one that it stayed away from."""
    for name in dict.fromkeys(group for group, _ in record.by_place):
        if name in job.groups:
            yield job.groups[name]


def _first_shared(group: str, job: JobCalls) -> int:
    firsts = [
        (calls[0].event.seq or 0)
        for rank in job.groups[group].ranks
        if rank in job.ranks and (calls := job.ranks[rank].by_place.get((group, "collective")))
    ] if group in job.groups else []  # fmt: skip
    return max(firsts, default=0)


def _without_sites(recording: Recording, groups: set[str]) -> Recording:
    events = tuple(replace(event, call_site="") if event.group in groups else event for event in recording.events)
    return replace(recording, events=events)


# --- what comes out ---------------------------------------------------------------------------------------------


def _uneven_totals(job: JobCalls) -> Iterator[Divergence]:
    """The first all_to_all of dumps in which more is sent than received in all, or less: all that sizes without splits tell."""
    met: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, record in job.ranks.items():
        for call in record.calls:
            if call.event.op == "all_to_all" and call.sent_elements is not None and call.event.seq is not None:
                met.setdefault((call.event.group, call.event.seq), {})[rank] = call
    for (name, seq), calls in sorted(met.items()):
        group = job.groups.get(name)
        sent, received = (sum(getattr(call, side) or 0 for call in calls.values()) for side in ("sent_elements", "received_elements"))
        if group is not None and len(calls) == len(group.ranks) and sent != received:
            events = {rank: call.event for rank, call in calls.items()}
            message = f"{name}, all_to_all {seq}: its ranks send {sent:,} elements and expect {received:,}"
            yield Divergence(group=name, axis=group.axis, seq=seq, cause="splits", ranks=group.ranks, events=events, message=message)
            return


def _is_fault(found: Divergence) -> bool:
    """A rank that has not come so far is judged by who waits for whom (waits.py), not here."""
    return found.cause != "unmatched" and not (found.cause == "missing" and not set(found.ranks) & set(found.events))


def _only_sites(found: Divergence, recordings: Iterable[Recording]) -> bool:
    """Whether only the line differs, and the ranks are in step."""
    if found.cause != "call_site" or len({event.module for event in found.events.values()}) > 1:
        return False
    calls = _calls_of(found.group, recordings)
    return all(out_of_step(calls, found.seq, (rank,)) is None for rank in calls)


def _calls_of(group: str, recordings: Iterable[Recording]) -> dict[int, list[Event]]:
    calls = {recording.rank: calls_in(recording, group) for recording in recordings}
    return {rank: events for rank, events in calls.items() if events}


def _judged(found: Divergence, recordings: Sequence[Recording]) -> Disagreement:
    if next(iter(found.events.values())).kind == "p2p" or found.cause == "splits":
        return Disagreement(found=found, cause=found.cause, ranks=found.ranks, certain=set(found.ranks) != set(found.events))
    tied = set(found.ranks) == set(found.events) and len(found.events) > 1
    ranks, reason, strong = settled(found, recordings) if tied else (found.ranks, "", True)
    cause: Cause = found.cause
    if cause != "order" and (reason or not tied):
        calls = _calls_of(found.group, recordings)
        cause = out_of_step(calls, found.seq, ranks) or ("missing" if left_out(found, ranks, recordings) else cause)
    return Disagreement(found=found, cause=cause, ranks=ranks, certain=strong, reason=reason)
