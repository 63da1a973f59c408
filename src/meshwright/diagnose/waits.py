"""Who waits for whom when a job stands still, and where all waiting ends.

Each rank's oldest unfinished call of every group is a wait: for the members that have not entered it, for those that entered it and
sit in an earlier call of the group, and for those that queued it behind an unfinished call of another group. Ranks that wait for each
other are taken together (strongly connected components); what waits for nobody is where the waiting ends. So a collective is followed
from the innermost group outward, whatever was enqueued or logged last.

A rank that has not completed what another member has completed holds everybody up by itself: the data was there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.diagnose.calls import Call, RankCalls
from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.job import JobCalls, job_of

ONE_WAY = ("broadcast", "reduce", "scatter", "gather", "send", "recv")
"""Their members do not all need each other's data: one may be done and the next still wait."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A call that a rank has not completed, and whom it waits for there.

    Attributes:
        call: the call. members: of its group. peer: only it is waited for (P2P).
        absent: those that have not entered it. behind: those that have, and are held up by something earlier.
        unknown: those of which nothing is known. done: those that have completed it.
    """

    rank: int
    call: Call
    members: tuple[int, ...]
    absent: frozenset[int]
    behind: frozenset[int]
    unknown: frozenset[int]
    done: frozenset[int]

    @property
    def blockers(self) -> frozenset[int]:
        return self.absent | self.behind | self.unknown

    @property
    def alone(self) -> bool:
        """Whether the rank misses what others have completed, which needed all of them."""
        return bool(self.done) and self.call.event.op not in ONE_WAY


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """The waits of a job.

    Attributes:
        waits: by rank, in the order of its calls.
        ends: the sets of ranks that wait for nobody outside of their set, and are waited for or wait among themselves.
    """

    job: JobCalls
    waits: Mapping[int, tuple[Wait, ...]] = field(default_factory=dict)
    ends: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def alone(self) -> dict[int, Wait]:
        """Ranks that have not completed what others have, with the first such call."""
        return {rank: wait for rank, waits in self.waits.items() for wait in reversed(waits) if wait.alone}

    def waiting_for(self, ranks: Iterable[int]) -> list[Wait]:
        """The waits that these ranks hold up directly, the one that they would have come to first in front: what the waiting ranks came to
        first, collectives before P2P, by time, small groups first."""
        wanted = set(ranks)
        found = []
        for rank, waits in self.waits.items():
            held = [wait for wait in waits if wait.blockers & wanted] if rank not in wanted else []
            found += [(place, *_order(wait, wanted), wait) for place, wait in enumerate(held)]
        return [wait for *_, wait in sorted(found, key=lambda each: each[:-1])]


def _order(wait: Wait, wanted: set[int]) -> tuple[bool, bool, float, int, int]:
    event = wait.call.event
    entered_s = float("inf") if event.enqueued_s is None else event.enqueued_s
    return event.kind == "p2p", not wait.absent & wanted, entered_s, len(wait.members), wait.rank


def standstill(evidence: Evidence) -> Standstill:
    """Where the job of these files stands still; no waits and no ends if it does not."""
    job = evidence.derived(job_of)
    waits = _Waits(job).all()
    alone = {rank for rank, mine in waits.items() if any(wait.alone for wait in mine)}
    edges = {rank: frozenset() if rank in alone else frozenset().union(*(w.blockers for w in mine)) for rank, mine in waits.items()}
    nodes = set(edges).union(*edges.values())
    return Standstill(job=job, waits=waits, ends=tuple(_ends(nodes, edges)))


class _Waits:
    """Works the waits out; what several ranks ask about one call is worked out once."""

    def __init__(self, job: JobCalls) -> None:
        self.job = job
        self.mixed = {place[0] for record in job.ranks.values() for place in record.by_place if place[1] == "p2p"}
        self.oldest = {rank: _oldest(record) for rank, record in job.ranks.items()}
        self.first = {rank: min((c.event.index for c in calls.values()), default=None) for rank, calls in self.oldest.items()}
        self._states: dict[tuple[str, int], tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int]]] = {}

    def all(self) -> dict[int, tuple[Wait, ...]]:
        waits = {}
        for rank, record in self.job.ranks.items():
            mine = [self._p2p(rank, call) if call.event.kind == "p2p" else self._collective(rank, call) for call in self._asked(record)]
            kept = tuple(wait for wait in mine if wait is not None)
            if kept:
                waits[rank] = kept
        return waits

    def _asked(self, record: RankCalls) -> list[Call]:
        """The calls that the rank may be waiting in."""
        calls = list(self.oldest[record.rank].values())
        if not record.tells_done:
            # Its last call of each group: it hangs there if, and only if, another member has not come to it.
            there = {call.place for call in calls}
            last = [calls_of[-1] for place, calls_of in record.by_place.items() if place not in there]
            calls += [call for call in last if self._state(call)[0]]
        return sorted(calls, key=lambda call: call.event.index)

    def _collective(self, rank: int, call: Call) -> Wait:
        absent, behind, unknown, done = self._state(call)
        me = frozenset((rank,))
        group = self.job.groups.get(call.event.group)
        members = group.ranks if group else (rank,)
        return Wait(rank=rank, call=call, members=members, absent=absent - me, behind=behind - me, unknown=unknown - me, done=done - me)

    def _state(self, call: Call) -> tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int]]:
        """(absent, behind, unknown, done) of a collective, over all members of its group."""
        key = (call.event.group, call.event.seq or 0)
        if key not in self._states:
            group = self.job.groups.get(call.event.group)
            where: dict[str, set[int]] = {"absent": set(), "behind": set(), "unknown": set(), "done": set(), "there": set()}
            for member in group.ranks if group else ():
                where[self._stands(member, *key)].add(member)
            states = (frozenset(where[name]) for name in ("absent", "behind", "unknown", "done"))
            self._states[key] = next(states), next(states), next(states), next(states)
        return self._states[key]

    def _stands(self, rank: int, group: str, seq: int) -> str:
        record = self.job.ranks.get(rank)
        if record is None:
            return "unknown"
        calls = record.by_place.get((group, "collective"), ())
        reached = max((call.event.seq or 0 for call in calls), default=self._counted(record, group, seq))
        if reached < seq:
            return "absent"
        oldest = self.oldest[rank].get((group, "collective", None))
        if oldest is None or (oldest.event.seq or 0) > seq:
            return "done" if record.tells_done else "there"
        if (oldest.event.seq or 0) < seq:
            return "behind"
        first = self.first[rank]
        return "behind" if first is not None and first < oldest.event.index else "there"

    def _counted(self, record: RankCalls, group: str, seq: int) -> int:
        """How far a rank without any call of the group in its file has come, by its counts; taken as "not there" if they do not tell."""
        status = record.status.get(group)
        if status is None or status.enqueued is None or group in self.mixed:
            return seq - 1
        return status.enqueued

    def _p2p(self, rank: int, call: Call) -> Wait | None:
        event = call.event
        peer = event.peer
        if peer is None or (peer in self.job.ranks and not self.job.ranks[peer].sees_p2p):
            return None
        nobody: frozenset[int] = frozenset()
        absent, behind, unknown = nobody, nobody, nobody
        other = self.job.ranks.get(peer)
        if other is None:
            unknown = frozenset((peer,))
        else:
            fitting = [found for found in other.pending if _fits(call, found, rank)]
            first = self.first[peer]
            if not fitting:
                absent = frozenset((peer,))
            elif first is not None and first < fitting[0].event.index:
                behind = frozenset((peer,))
        return Wait(rank=rank, call=call, members=(rank, peer), absent=absent, behind=behind, unknown=unknown, done=nobody)


def _fits(call: Call, other: Call, rank: int) -> bool:
    """Whether ``other`` is the other end of a P2P call of ``rank``."""
    mine, theirs = call.event, other.event
    return theirs.peer == rank and theirs.op != mine.op and other.place == call.place and theirs.tag == mine.tag


def _oldest(record: RankCalls) -> dict[tuple[str, str, int | None], Call]:
    """The oldest unfinished call of each group, and of each peer in it for P2P. What was overtaken by a completed call is not one."""
    found: dict[tuple[str, str, int | None], Call] = {}
    for call in record.calls:
        key = (*call.place, call.event.peer if call.event.kind == "p2p" else None)
        if call.done is False:
            found.setdefault(key, call)
        elif call.done:
            found.pop(key, None)
    return found


def _ends(nodes: set[int], edges: Mapping[int, frozenset[int]]) -> list[tuple[int, ...]]:
    """Strongly connected components without an edge that leaves them (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found = []
    for root in sorted(nodes):
        if root in index:
            continue
        work = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for after in rest:
                if after not in index:
                    index[after] = low[after] = len(index)
                    stack.append(after)
                    on_stack.add(after)
                    work.append((after, iter(sorted(edges.get(after, ())))))
                    break
                if after in on_stack:
                    low[node] = min(low[node], index[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    found.append(_popped(stack, on_stack, node))
    component = {rank: number for number, ranks in enumerate(found) for rank in ranks}
    return [
        ranks for number, ranks in enumerate(found) if all(component[after] == number for rank in ranks for after in edges.get(rank, ()))
    ]


def _popped(stack: list[int], on_stack: set[int], node: int) -> tuple[int, ...]:
    ranks = []
    while True:
        rank = stack.pop()
        on_stack.discard(rank)
        ranks.append(rank)
        if rank == node:
            return tuple(sorted(ranks))
