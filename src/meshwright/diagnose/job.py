"""All that is known of one job, rank by rank, put together from whatever was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.diagnose.calls import Call, RankCalls, of_recording
from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.finding import ranks_text
from meshwright.recording.events import MAX_RANKS, Group
from meshwright.recording.read import Recording

BEST_FIRST = ("recording", "dump", "log")
"""What tells most of a rank counts where several files tell of it."""


@dataclass(frozen=True, kw_only=True)
class JobCalls:
    """One job.

    Attributes:
        ranks: by rank. world_size: 0 where nothing is known.
        groups: by name, with their members.
        missing: ranks that left nothing.
        left_out: sentences on files that were not used (another job's, a second one of a rank).
    """

    ranks: Mapping[int, RankCalls]
    world_size: int
    groups: Mapping[str, Group]
    missing: tuple[int, ...]
    left_out: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """What its ranks left: "dumps"."""
        kinds = sorted({record.kind for record in self.ranks.values()}, key=BEST_FIRST.index)
        return " and ".join(f"{kind}s" for kind in kinds)


def job_of(evidence: Evidence) -> JobCalls:
    """The job that most of the files are of."""
    records = [of_recording(recording) for recording in evidence.of(Recording)] + evidence.of(RankCalls)
    records, impossible = _possible(records)
    mine, left_out = _one_job(records)
    left_out += impossible
    ranks, twice = _one_each(mine)
    left_out += twice
    records = _named_apart([ranks[rank] for rank in sorted(ranks)])
    world_size = max((record.world_size for record in records), default=0)
    if not world_size:  # logs do not tell it; the highest rank that speaks is a lower bound
        members = [rank for record in records for group in record.groups.values() for rank in group.ranks]
        world_size = max((*members, *(record.rank for record in records)), default=-1) + 1
    groups = _groups(records, world_size)
    missing = tuple(sorted(set(range(world_size)) - set(ranks)))
    return JobCalls(
        ranks={record.rank: record for record in records}, world_size=world_size, groups=groups, missing=missing, left_out=tuple(left_out)
    )


def _possible(records: Sequence[RankCalls]) -> tuple[list[RankCalls], list[str]]:
    """Files of jobs that there may be: a damaged number of ranks would have a billion of them missing."""
    good, left_out = [], []
    for record in records:
        highest = max((record.world_size - 1, record.rank, *(rank for group in record.groups.values() for rank in group.ranks)))
        if highest < MAX_RANKS:
            good.append(record)
        else:
            left_out.append(f"a file that names rank {highest} ({record.source})")
    return good, left_out


def _one_job(records: Sequence[RankCalls]) -> tuple[list[RankCalls], list[str]]:
    """Files that agree on the job's size (and plan, where they tell it); those that tell neither belong to any job."""
    jobs: dict[tuple[str, int], list[RankCalls]] = defaultdict(list)
    for record in records:
        if record.world_size:
            jobs[record.job, record.world_size].append(record)
    if len(jobs) <= 1:
        return list(records), []
    largest = max(jobs, key=lambda key: (len({record.rank for record in jobs[key]}), key[1]))
    left_out = [
        f"{len(members)} file{'s' * (len(members) > 1)} of another job, of {size} ranks ({members[0].source}, ...)"
        for (job, size), members in jobs.items()
        if (job, size) != largest
    ]
    return [record for record in records if not record.world_size or (record.job, record.world_size) == largest], left_out


def _one_each(records: Iterable[RankCalls]) -> tuple[dict[int, RankCalls], list[str]]:
    """One record a rank: the best kind, and of one kind the one whose last call is the latest."""
    best: dict[int, RankCalls] = {}
    left_out = []
    for record in records:
        other = best.setdefault(record.rank, record)
        if other is record:
            continue
        older, newer = sorted((other, record), key=_worth)
        best[record.rank] = replace(
            newer,
            remarks=tuple(dict.fromkeys((*newer.remarks, *older.remarks))),
            nccl_warnings=(*newer.nccl_warnings, *older.nccl_warnings),
            watchdog_stuck=newer.watchdog_stuck or older.watchdog_stuck,
            calls=newer.calls or older.calls if newer.kind == older.kind == "log" else newer.calls,
            status=dict(older.status) | dict(newer.status) if newer.kind == older.kind == "log" else newer.status,
        )
        if older.kind == newer.kind and older.kind != "log":
            left_out.append(f"{older.source}: a second file of rank {record.rank}, older than {newer.source}")
    return best, left_out


def _worth(record: RankCalls) -> tuple[float, float]:
    last = record.last
    return -BEST_FIRST.index(record.kind), (last.event.enqueued_s or 0.0) if last else 0.0


def _named_apart(records: Sequence[RankCalls]) -> list[RankCalls]:
    """Groups that different ranks call by one name although their members differ get the first member in their name."""
    members: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for record in records:
        for group in record.groups.values():
            members[group.name].add(group.ranks)
    shared = {name for name, ranks in members.items() if len(ranks) > 1}
    return [_renamed(record, shared) for record in records] if shared else list(records)


def _renamed(record: RankCalls, shared: set[str]) -> RankCalls:
    names = {name: f"{name}@{min(group.ranks)}" for name, group in record.groups.items() if name in shared}
    if not names:
        return record

    def call(old: Call) -> Call:
        return replace(old, event=replace(old.event, group=names[old.event.group])) if old.event.group in names else old

    return replace(
        record,
        groups={names.get(name, name): replace(group, name=names.get(name, name)) for name, group in record.groups.items()},
        calls=tuple(map(call, record.calls)),
        status={names.get(name, name): status for name, status in record.status.items()},
    )


def _groups(records: Sequence[RankCalls], world_size: int) -> dict[str, Group]:
    """With the members that the files give; a group whose members none gives has those that called in it."""
    groups = {group.name: group for record in records for group in record.groups.values()}
    callers: dict[str, set[int]] = defaultdict(set)
    for record in records:
        for name in {*(name for name, _ in record.by_place), *record.status} - set(groups):
            callers[name].add(record.rank)
    for name, ranks in callers.items():
        everyone = name in ("group 0", "0:default_pg", "default_pg")
        groups[name] = Group(name=name, axis=name, ranks=tuple(range(world_size)) if everyone and world_size else tuple(sorted(ranks)))
    return groups


def mostly_missing(job: JobCalls) -> bool:
    """Whether more ranks left nothing than something: then waiting that ends at them says little."""
    return len(job.missing) > len(job.ranks)


def missing_text(job: JobCalls) -> str:
    """A sentence on the ranks that left nothing; "" if all did."""
    if not job.missing:
        return ""
    verb = "leaves" if len(job.missing) == 1 else "leave"
    return f"{ranks_text(job.missing)} {verb} no file among those of {len(job.ranks):,} of {job.world_size:,} ranks"
