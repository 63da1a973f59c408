"""A rule's cases, from YAML to evidence.

A case names one form of FORMS, and its value is that form's input. ``recordings`` takes the calls of each rank in words:

    recordings:
      groups: {tp.0: [0, 1, 2]}
      all: &calls
        - tp.0 all_reduce(sum) float32[4,8] at model.py:12
        - tp.0 all_to_all float32[6] splits 1,2,3 -> 2,2,2 at model.py:30
        - pp.0 send float32[4] to 1 tag 7, not completed
      2: [...]                      # what rank 2 did instead

``all`` is what every rank does that is not listed by its number. ``dumps`` takes what flight-recorder dumps show:

    dumps:
      groups: {"5:TP": [0, 1]}
      0: {calls: ["5:TP all_gather bf16[64] number 810, not completed"], status: {"5:TP": [810, 809]}}

A rank that is not listed has left no dump; ``status`` is (last enqueued, last completed). ``stacks`` takes frames by rank, ``log``
a text of the kind that job_log.py reads.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

from meshwright.diagnose.calls import Call, RankCalls, Status
from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.readers import job_log
from meshwright.diagnose.slow import cases as slow
from meshwright.diagnose.source import Source, Unreadable
from meshwright.diagnose.stacks import Stack
from meshwright.job import Asked, Job, resolve
from meshwright.recording.events import Event, Group, Header
from meshwright.recording.read import Recording
from meshwright.units import DTYPE_BYTES

CALL = re.compile(
    r"(?P<group>\S+) (?P<op>\w+)(?:\((?P<reduce_op>\w+)\))? (?P<dtype>\w+)\[(?P<shape>[\d,]*)\]"
    r"(?: splits (?P<sent>[\d,]+) -> (?P<received>[\d,]+))?(?: (?:to|from|root) (?P<peer>\d+))?(?: tag (?P<tag>\d+))?"
    r"(?: in (?P<module>\S+))?(?: at (?P<site>[^\s,]+))?(?: number (?P<number>\d+))?(?P<pending>, not completed)?"
)


def evidence_of(case: Mapping[str, Any]) -> Evidence:
    """The evidence of a case; its ``plan``, if it has one, gives a model, a cluster and what else ``estimate`` takes."""
    said = case.get("plan")
    plan = resolve(Asked(subject=said["model"], cluster=said["cluster"], gpus=said["gpus"], layouts=(said["layout"],), seq=said["seq"],
                         batch=said["batch"])) if said else None  # fmt: skip
    pieces = tuple(evidence_pieces(case))
    return Evidence(pieces=pieces, plan=plan or next((piece for piece in pieces if isinstance(piece, Job)), None))


def evidence_pieces(case: Mapping[str, Any]) -> list[object]:
    """What the readers would have given for a case."""
    (form,) = set(case) & set(FORMS)
    return list(FORMS[form](case[form]))


def recordings(value: Mapping[Any, Any]) -> Iterable[object]:
    """One Recording per rank of the groups, or of a plan (cases_planned.py)."""
    if "as_planned" in value:
        from meshwright.diagnose.cases_planned import as_planned

        yield from as_planned(value)
        return
    groups = [Group(name=name, axis=name.partition(".")[0], ranks=tuple(ranks)) for name, ranks in value["groups"].items()]
    ranks = sorted({rank for group in groups for rank in group.ranks})
    for rank in ranks:
        calls = value.get(rank, value.get("all"))
        if calls is not None:
            mine = tuple(group for group in groups if rank in group.ranks)
            header = Header(world_size=len(ranks), rank=rank, groups=mine)
            yield Recording(header=header, events=_events(calls, {group.name for group in mine}), path=f"rank {rank}")


def dumps(value: Mapping[Any, Any]) -> Iterable[RankCalls]:
    """One RankCalls per rank that is listed; all of the groups if there is an ``all``."""
    groups = {name: Group(name=name, axis=name.partition(":")[2] or name, ranks=tuple(ranks)) for name, ranks in value["groups"].items()}
    ranks = sorted({rank for group in groups.values() for rank in group.ranks})
    for rank in ranks:
        shown = value.get(rank, value.get("all"))
        if shown is not None:
            mine = {name: group for name, group in groups.items() if rank in group.ranks}
            calls = tuple(Call(event=event, done=event.completed_s is not None) for event in _events(shown["calls"], set(mine)))
            status = {name: Status(enqueued=counts[0], completed=counts[1]) for name, counts in shown["status"].items() if name in mine}
            yield RankCalls(rank=rank, source=f"dump_{rank}", kind="dump", world_size=len(ranks), groups=mine, calls=calls, status=status)


def stacks(value: Mapping[int, Any]) -> Iterable[Stack]:
    """One Stack per rank: its main thread's frames, innermost first."""
    for rank, frames in value.items():
        yield Stack(rank=rank, source=f"stack_{rank}", process="", frames=tuple(frames), state="idle")


def log(value: str) -> Iterable[object]:
    """What the reader of logs gives for a text; nothing where it finds no fault in it."""
    text = value.encode()
    try:
        return list(job_log.read(Source("job.log", len(text), lambda: io.BytesIO(text))))
    except Unreadable:
        return []


def _events(calls: Iterable[str], groups: set[str]) -> tuple[Event, ...]:
    seqs: Counter[tuple[str, str]] = Counter()
    events: list[Event] = []
    for call in calls:
        event = _event(call, len(events), seqs)
        if event.group in groups:  # of `all`, a rank makes only the calls of its own groups
            events.append(event)
    return tuple(events)


def _event(text: str, index: int, seqs: Counter[tuple[str, str]]) -> Event:
    match = CALL.fullmatch(text)
    assert match is not None, text
    part = match.groupdict()
    kind: Any = "p2p" if part["op"] in ("send", "recv") else "collective"
    seq = seqs[part["group"], kind]
    seqs[part["group"], kind] += 1
    seq = seq if part["number"] is None else int(part["number"])
    shape = _numbers(part["shape"])
    return Event(
        index=index, kind=kind, op=part["op"], reduce_op=part["reduce_op"] or "", group=part["group"], seq=seq,
        peer=int(part["peer"]) if part["peer"] else None, tag=int(part["tag"]) if part["tag"] else None,
        dtype=part["dtype"], shape=shape, payload_bytes=int(prod(shape) * DTYPE_BYTES[part["dtype"]]), module=part["module"] or "",
        input_splits=_numbers(part["sent"]), output_splits=_numbers(part["received"]), call_site=part["site"] or "",
        enqueued_s=float(index), completed_s=None if part["pending"] else index + 0.5,
    )  # fmt: skip


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


FORMS: dict[str, Callable[[Any], Iterable[object]]] = {
    "recordings": recordings,
    "dumps": dumps,
    "stacks": stacks,
    "log": log,
    "profile": slow.profile,
    "operations": slow.operations,
}
"""How a case may be written down: its key in the YAML, and what makes evidence of its value."""
