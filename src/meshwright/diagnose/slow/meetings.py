"""The same collective on all ranks, side by side: what of it is transfer and what is waiting, and who came last.

A collective ends everywhere at about the same moment, and begins when its last rank arrives. So the shortest of the ranks'
durations is the transfer, each rank's excess over it is waiting, and the rank of the shortest duration is the late one. That needs
no common clock (the reading of waiting in arXiv 2505.05713, section 3: transfer begins when the last peer has launched).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from meshwright.diagnose.slow.step_split import group_label, op_of

if TYPE_CHECKING:
    from meshwright.recording.trace import Communication, Trace

__all__ = ["Meeting", "meetings_of"]

P2P = ("send", "recv")


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """One collective, as seen by the ranks whose traces are there.

    Attributes:
        group: its name; "" where the traces do not say it.
        op, payload_bytes: the largest payload any of them passed in.
        number: place among the group's meetings, from 0.
        ranks: of the group, as far as known; of a message its source and target. duration_s, start_s: by rank, on the ranks' own clocks.
        whole: whether every rank of the group is there: without the late one, transfer is only an upper bound.
    """

    group: str
    op: str
    number: int
    payload_bytes: int
    ranks: tuple[int, ...]
    duration_s: Mapping[int, float]
    start_s: Mapping[int, float]
    whole: bool

    @property
    def transfer_s(self) -> float:
        """Per rank."""
        return min(self.duration_s.values())

    @cached_property
    def late_rank(self) -> int:
        """The rank that waited least; of equals the one that began last, by its clock."""
        return min(self.duration_s, key=lambda rank: (round(self.duration_s[rank], 9), -self.start_s[rank]))

    @property
    def waiting_s(self) -> dict[int, float]:
        """By rank."""
        return {rank: duration - self.transfer_s for rank, duration in self.duration_s.items()}

    @property
    def waited_s(self) -> float:
        """Of all ranks together: what the late rank cost."""
        return sum(self.duration_s.values()) - self.transfer_s * len(self.duration_s)


@dataclass(frozen=True)
class _Held:
    rank: int
    origin_s: float
    each: Communication

    @property
    def end_s(self) -> float:
        return self.origin_s + self.each.end_s


def meetings_of(traces: Sequence[Trace]) -> tuple[Meeting, ...]:
    """Every collective that two ranks or more are seen in, in order of time.

    Groups come from the profiler's metadata; where it has none, collectives of one stream are taken for one group's, and ranks
    whose collectives do not end together for different groups.
    """
    lists: dict[tuple[str, tuple[int, ...], bool], dict[int, list[_Held]]] = defaultdict(lambda: defaultdict(list))
    unnamed: dict[int, dict[int, list[_Held]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        streams: dict[str, int] = {}
        for each in trace.communications:
            held = _Held(trace.rank, trace.origin_s, each)
            if (pair := _pair(trace.rank, each)) is not None:
                lists[group_label(each), pair, True][trace.rank].append(held)
            elif each.call.op in P2P:
                continue  # one end of a message whose other end the trace does not name
            elif group_label(each):
                lists[group_label(each), each.call.ranks, False][trace.rank].append(held)
            else:
                unnamed[streams.setdefault(each.stream, len(streams))][trace.rank].append(held)
    found: list[tuple[float, Meeting]] = []
    for (group, ranks, _), by_rank in lists.items():
        found += _met(group, ranks, by_rank)
    for by_rank in unnamed.values():
        for part in _apart(by_rank):
            found += _met("", (), part)
    return tuple(meeting for _, meeting in sorted(found, key=lambda pair: pair[0]))


def _pair(rank: int, each: Communication) -> tuple[int, int] | None:
    """Source and target of a message."""
    peer = each.call.peer
    if each.call.op not in P2P or peer is None or peer == rank:
        return None
    return (rank, peer) if each.call.op == "send" else (peer, rank)


def _met(group: str, ranks: tuple[int, ...], by_rank: Mapping[int, list[_Held]]) -> list[tuple[float, Meeting]]:
    rows = _aligned(by_rank)
    found = []
    for number, row in enumerate(rows):
        if len(row) < 2:
            continue
        first = next(iter(row.values())).each
        meeting = Meeting(
            group=group, op=_met_op(first), number=number, payload_bytes=max(held.each.call.payload_bytes for held in row.values()),
            ranks=ranks or tuple(sorted(row)), whole=set(ranks or row) <= set(row),
            duration_s={rank: held.each.duration_s for rank, held in row.items()},
            start_s={rank: held.origin_s + held.each.start_s for rank, held in row.items()},
        )  # fmt: skip
        found.append((max(held.end_s for held in row.values()), meeting))
    return found


def _aligned(by_rank: Mapping[int, list[_Held]]) -> list[dict[int, _Held]]:
    """The collectives of one group, those that belong together in one row."""
    if all(held.each.call.seq is not None and held.each.call.op not in P2P for mine in by_rank.values() for held in mine):
        return _by_number(by_rank)
    shifts = _shifts({rank: [_met_op(held.each) for held in mine] for rank, mine in by_rank.items()})
    rows: dict[int, dict[int, _Held]] = defaultdict(dict)
    for rank, mine in by_rank.items():
        for place, held in enumerate(mine):
            if rank in shifts:
                rows[place + shifts[rank]][rank] = held
    return [row for _, row in sorted(rows.items()) if len({_met_op(held.each) for held in row.values()}) == 1]


def _met_op(each: Communication) -> str:
    """What both ends call it: a message is a send."""
    return "send" if op_of(each) in P2P else op_of(each)


def _by_number(by_rank: Mapping[int, list[_Held]]) -> list[dict[int, _Held]]:
    rows: dict[tuple[int, int], dict[int, _Held]] = defaultdict(dict)
    for rank, mine in by_rank.items():
        times: Counter[int] = Counter()  # several kernels may belong to one number
        for held in mine:
            seq = held.each.call.seq or 0
            rows[seq, times[seq]][rank] = held
            times[seq] += 1
    return [row for _, row in sorted(rows.items())]


def _shifts(ops: Mapping[int, Sequence[str]]) -> dict[int, int]:
    """Of each rank, the row of its first collective. A profile may begin a few collectives later on one rank than on another."""
    longest = max(ops, key=lambda rank: len(ops[rank]))
    reference = ops[longest]
    shifts = {}
    for rank, mine in ops.items():
        room = len(reference) - len(mine)
        agreement = {shift: sum(a == b for a, b in zip(mine, reference[shift:], strict=False)) for shift in range(min(room, 1000) + 1)}
        best = max(agreement, key=lambda shift: (agreement[shift], shift == room))
        if agreement[best] >= 0.9 * len(mine):
            shifts[rank] = best
    return shifts


def _apart(by_rank: Mapping[int, list[_Held]]) -> list[dict[int, list[_Held]]]:
    """Ranks whose collectives end together. If none do, their clocks differ, and all are taken for one group."""
    together: list[list[int]] = []
    for rank, mine in sorted(by_rank.items()):
        for part in together:
            other = by_rank[part[0]]
            if len(other) == len(mine) and _end_together(mine, other):
                part.append(rank)
                break
        else:
            together.append([rank])
    if all(len(part) == 1 for part in together):
        return [dict(by_rank)]
    return [{rank: by_rank[rank] for rank in part} for part in together]


def _end_together(mine: Sequence[_Held], other: Sequence[_Held]) -> bool:
    """Within a tenth of the time from one collective to the next, in the middle of them."""
    apart = median(abs(a.end_s - b.end_s) for a, b in zip(mine, other, strict=True))
    if len(mine) == 1:
        return apart < max(0.1 * mine[0].each.duration_s, 1e-4)
    spacing = median(b.end_s - a.end_s for a, b in pairwise(mine))
    return apart < 0.1 * spacing
