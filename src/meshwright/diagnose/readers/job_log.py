"""What torch's process groups and NCCL write into a job's logs, of one rank or of many in one file.

torch (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, versions 2.2 to 2.10) names the work that timed out and each group's last enqueued
and last completed work; the heartbeat monitor tells a watchdog that is stuck; NCCL (NCCL_DEBUG=WARN or INFO) tells its own warnings and the
size of each communicator. Lines of one kind come in several wordings; what differs between versions is optional in the patterns.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from meshwright.diagnose.calls import Call, RankCalls, Status
from meshwright.diagnose.readers.flight_recorder import OPS
from meshwright.diagnose.readers.reader import Reader
from meshwright.diagnose.source import Source, Unreadable
from meshwright.recording.events import Event, Group

MAX_BYTES = 1 << 31
MAX_LINE = 4000
"""Of a line, for more than that is not of these kinds."""

MAX_REMARKS = 20
"""Of a rank: a process that fails repeats itself."""

INTERESTING = re.compile(rb"ProcessGroupNCCL|NCCL (?:WARN|INFO)|Watchdog caught collective|last (?:enqueued|completed)")

WHERE = re.compile(r"\[PG (?:ID )?(?P<number>\d+)(?: PG GUID (?P<guid>[^\s(\]]+))?\s*(?:\((?P<desc>[^)]*)\))? Rank (?P<rank>\d+)\]")
RANK = re.compile(r"\[Rank (\d+)\]|\[rank(\d+)\]")
TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)"
    r"(?:, NumelIn=(?P<sent>\d+))?(?:, NumelOut=(?P<received>\d+))?.*?ran for (?P<ms>\d+) milliseconds"
)
COUNTS = re.compile(
    r"last enqueued (?:NCCL )?work: (-?\d+)(?:, last started (?:NCCL )?work: -?\d+)?, last completed (?:NCCL )?work: (-?\d+)", re.IGNORECASE
)
AT_WORK = re.compile(r"(?:at work|at NCCL work|at work sequence id): (\d+)", re.IGNORECASE)
STUCK = re.compile(r"Heartbeat monitor timed out|watchdog got stuck for (\d+) seconds", re.IGNORECASE)
FROM_RANK = re.compile(r"collective timeout from\s+rank (\d+)")
NCCL_WARN = re.compile(r"\[(\d+)\] .*?NCCL WARN (.*)")
NCCL_RANK = re.compile(r"comm 0x[0-9a-f]+ rank (\d+) nranks (\d+) cudaDev (\d+)")

OP_TYPES = {
    "ALLREDUCE": "all_reduce", "_ALLGATHER_BASE": "all_gather", "ALLGATHER": "all_gather", "ALLGATHER_COALESCED": "all_gather",
    "_REDUCE_SCATTER_BASE": "reduce_scatter", "REDUCE_SCATTER": "reduce_scatter", "ALLTOALL_BASE": "all_to_all", "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast", "_BROADCAST_OOP": "broadcast", "REDUCE": "reduce", "_REDUCE_OOP": "reduce", "BARRIER": "barrier",
    "GATHER": "gather", "SCATTER": "scatter", "ALLREDUCE_COALESCED": "all_reduce",
}  # fmt: skip
"""torch's OpType by our names. SEND, RECV and COALESCED are left out: their lines do not tell the peer."""


@dataclass
class _Rank:
    """What one file tells of a rank, while it is read."""

    status: dict[str, Status] = field(default_factory=dict)
    timed_out: dict[int, dict[str, Any]] = field(default_factory=dict)
    group_of: dict[int, str] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    watchdog_stuck: bool = False


def recognises(source: Source) -> bool:
    """A text with at least one line of these kinds, wherever it is."""
    if b"\0" in source.head:
        return False
    with source.stream() as stream:
        before = b""
        read = 0
        while (chunk := stream.read(1 << 22)) and read < MAX_BYTES:
            if INTERESTING.search(before + chunk):
                return True
            before, read = chunk[-200:], read + len(chunk)
    return False


def read(source: Source) -> Iterator[RankCalls]:
    """A record for each rank that the file tells of. Raises Unreadable."""
    ranks: dict[int, _Rank] = {}
    sizes: dict[int, int] = {}
    with source.stream() as stream, io.TextIOWrapper(stream, encoding="utf-8", errors="replace") as lines:
        taken = 0
        while (line := lines.readline(MAX_LINE)) and taken < MAX_BYTES:
            taken += len(line)
            _take(line, ranks, sizes)
    if not ranks:
        raise Unreadable("is a log in which no rank tells of a fault")
    world = max(sizes.values(), default=0)
    for rank, told in sorted(ranks.items()):
        yield _record(source.name, rank, told, world)


def _take(line: str, ranks: dict[int, _Rank], sizes: dict[int, int]) -> None:
    if "NCCL" not in line and "atchdog" not in line and "eartbeat" not in line:
        return
    nccl = NCCL_RANK.search(line)
    if nccl is not None:
        sizes[int(nccl[1])] = max(sizes.get(int(nccl[1]), 0), int(nccl[2]))
    where = WHERE.search(line)
    plain = RANK.search(line)
    if where is None and plain is None:
        warning = NCCL_WARN.search(line)
        if warning is not None and len(sizes) == 1:  # a file of one rank
            _note(ranks.setdefault(next(iter(sizes)), _Rank()).warnings, warning[2].strip()[:200])
        return
    rank = int(where["rank"] if where is not None else next(filter(None, plain.groups())))  # type: ignore[union-attr]
    _told(line, rank, _group(where), ranks)


def _group(where: re.Match[str] | None) -> str:
    """The group's name that all ranks have in common, as dumps have it; "" where the line has none."""
    if where is None:
        return ""
    name = where["guid"] or where["number"]
    desc = where["desc"] or ("default_pg" if name == "0" else "")
    return f"{name}:{desc}" if desc and desc != "undefined" else name


def _told(line: str, rank: int, group: str, ranks: dict[int, _Rank]) -> None:
    counts, timeout, stuck, other = COUNTS.search(line), TIMEOUT.search(line), STUCK.search(line), FROM_RANK.search(line)
    if not any((counts, timeout, stuck, other)):
        return
    mine = ranks.setdefault(rank, _Rank())
    if timeout is not None:
        mine.timed_out[int(timeout["seq"])] = timeout.groupdict()
        waited_s = int(timeout["ms"]) / 1000
        _note(mine.remarks, f"rank {rank}: its watchdog gave up on {timeout['op']} {timeout['seq']} after {waited_s:,.0f} s")
    at = AT_WORK.search(line)
    if at is not None and group:
        mine.group_of[int(at[1])] = group
    if counts is not None and group:
        mine.status[group] = Status(enqueued=max(0, int(counts[1])), completed=max(0, int(counts[2])))
    if stuck is not None:
        mine.watchdog_stuck = True
        _note(mine.remarks, f"rank {rank}: its watchdog thread is stuck, as under a lock or in a call of CUDA or NCCL that never returns")
    if other is not None:
        _note(mine.remarks, f"rank {rank}: told by rank {other[1]} that a collective timed out there")


def _note(told: dict[str, None], text: str) -> None:
    if len(told) < MAX_REMARKS:
        told[text if text.isprintable() else text.encode("unicode_escape").decode("ascii")] = None


def _record(source: str, rank: int, told: _Rank, world: int) -> RankCalls:
    calls: list[Call] = []
    for seq, timeout in sorted(told.timed_out.items()):
        op = OP_TYPES.get(timeout["op"]) or OPS.get(timeout["op"].lower())
        group = told.group_of.get(seq) or _only([name for name, status in told.status.items() if (status.enqueued or 0) >= seq])
        if op is not None and group is not None:
            calls.append(_call(len(calls), op, seq, group, timeout))
    groups = {}
    if world:
        groups = {name: Group(name=name, axis=name, ranks=tuple(range(world))) for name in told.status if name == "0:default_pg"}
    return RankCalls(
        rank=rank, source=source, kind="log", groups=groups, calls=tuple(calls), status=told.status, sees_p2p=False,
        remarks=tuple(told.remarks), nccl_warnings=tuple(told.warnings), watchdog_stuck=told.watchdog_stuck,
    )  # fmt: skip


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _call(index: int, op: str, seq: int, group: str, timeout: dict[str, Any]) -> Call:
    sent, received = (int(timeout[side]) if timeout[side] else None for side in ("sent", "received"))
    numel = received if op == "all_gather" else sent
    shape = () if numel is None else (numel,)
    event = Event(index=index, kind="collective", op=op, group=group, seq=seq, shape=shape)
    return Call(event=event, done=False, sent_elements=sent, received_elements=received)


READER = Reader(kind=("log", "logs"), recognises=recognises, read=read)
