"""Hits of the rules on jobs that stand still: each end of the waiting is of one class, and its evidence is told in one way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from meshwright.diagnose.agreement import disagreements
from meshwright.diagnose.calls import Call, RankCalls, named, told
from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.job import missing_text
from meshwright.diagnose.waits import Standstill, Wait, standstill

Class = Literal["missing", "alone", "unknown", "circle", "stalled"]
"""missing: never entered what others wait in. alone: has not completed what others have. unknown: left no file. circle: several ranks wait
for each other. stalled: all have entered, none completes."""

MAX_CHAIN = 4
"""Lines of the chain from the culprits outward."""


def ends_of(evidence: Evidence, wanted: Class) -> list[tuple[int, ...]]:
    """The ends of the waiting that are of one class."""
    still = evidence.derived(standstill)
    return [ranks for ranks in still.ends if class_of(still, ranks) == wanted]


def class_of(still: Standstill, ranks: tuple[int, ...]) -> Class:
    """What kind of end these ranks are."""
    if len(ranks) > 1:
        return "circle"
    (rank,) = ranks
    if rank not in still.job.ranks:
        return "unknown"
    if rank in still.alone:
        return "alone"
    return "missing" if still.waiting_for(ranks) and not _held_with_all(still, rank) else "stalled"


def _held_with_all(still: Standstill, rank: int) -> bool:
    """Whether the rank itself is in a call that all its members have entered."""
    waiting = still.waits.get(rank, ())
    return bool(waiting) and not any(wait.absent & {rank} for waits in still.waits.values() for wait in waits)


def hit(evidence: Evidence, ranks: Sequence[int], wait: Wait, first: Sequence[str], confidence: str = "high") -> Hit | None:
    """A hit on these ranks, which hold up ``wait``; None if a disagreement between ranks explains it.

    Args:
        first: sentences that come before the chain.
    """
    still = evidence.derived(standstill)
    for found in evidence.derived(disagreements):
        if found.found.group == wait.call.event.group or set(found.ranks) & set(ranks):
            return None
    evidence_told = [*first, *_chain(still, ranks)]
    missing = [rank for rank in still.job.missing if rank not in ranks]
    if missing:
        evidence_told.append(f"{missing_text(still.job)}: whether they are at fault as well cannot be told")
        confidence = "medium" if confidence == "high" and len(missing) > len(ranks) else confidence
    return Hit(
        ranks=tuple(ranks), group=wait.call.event.group, collective=named(wait.call), evidence=tuple(evidence_told),
        confidence=confidence, words={"call": told(wait.call)}, weight=float(len(ranks)),
    )  # fmt: skip


def last_call(record: RankCalls) -> str:
    """What a rank did last, as far as its file tells."""
    if record.torn:
        return f"rank {record.rank}: its file ends in the middle of a line"
    last = record.last
    if last is None:
        return f"rank {record.rank}: its buffer is empty: all that it ever enqueued is completed, and it waits for nobody"
    state = "not completed" if last.done is False else "completed" if last.done else "entered"
    return f"rank {record.rank}: its last call is {named(last)} of {last.event.group}, {told(last)}, {state}"


def waiters(still: Standstill, ranks: Sequence[int]) -> Iterator[tuple[Wait, list[int]]]:
    """Each call in which others wait directly for these ranks, the smallest group first, with those who wait in it."""
    together: dict[tuple[str, str, int | None, int | None], tuple[Wait, list[int]]] = {}
    for wait in still.waiting_for(ranks):
        event = wait.call.event
        key = (event.group, event.op, event.seq if event.kind == "collective" else None, event.peer)
        together.setdefault(key, (wait, []))[1].append(wait.rank)
    yield from together.values()


def entered(call: Call, ranks: Sequence[int]) -> str:
    """``ranks 8, 10-13 and 15 wait in all_to_all 45265 of 72:EXPERT: all_to_all bf16[2048, 5120]``."""
    verb = "waits" if len(ranks) == 1 else "wait"
    return f"{ranks_text(ranks)} {verb} in {named(call)} of {call.event.group}: {told(call)}"


def _chain(still: Standstill, ranks: Sequence[int]) -> list[str]:
    """Who waits for the culprits, who for those, and so on outward."""
    held = set(ranks)
    lines: list[str] = []
    while len(lines) < MAX_CHAIN:
        ring = list(waiters(still, sorted(held)))
        new = {rank for _, waiting in ring for rank in waiting} - held
        if not new:
            break
        wait, waiting = ring[0]
        if held == set(ranks):
            lines += [entered(each.call, who) for each, who in ring[:2]]
        else:
            verb = "waits" if len(new) == 1 else "wait"
            call = f"{wait.call.event.op} in {wait.call.event.group}"
            lines.append(f"further out, {ranks_text(sorted(new))} {verb} for those ({ranks_text(sorted(set(waiting) & new))} in {call})")
        held |= new
    return lines
