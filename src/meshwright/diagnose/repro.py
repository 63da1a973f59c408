"""The smallest case of a fault as a script for two ranks: what a culprit called against what one of the others called.

The script is two_ranks.py.template with both lists filled in. Sizes shrink (every distinct size of a dimension becomes a small even
number, 1 stays 1), what makes the fault stays: the order, the op, the dtype, the difference in shape, the missing call.
"""

from __future__ import annotations

import pprint
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from meshwright.diagnose.agreement import Disagreement, calls_of, disagreements
from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.finding import Diagnosis, Finding, ranks_text
from meshwright.diagnose.job import job_of
from meshwright.diagnose.standing import waiters
from meshwright.diagnose.waits import standstill
from meshwright.errors import NoAnswer
from meshwright.recording.events import Event

TORCH_DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "bool": "uint8", "": "float32"}
"""Our names where torch has another; truth values are sent as bytes, which add up."""

MAX_CALLS = 12
"""Of each rank: two orders that have not met again by then are shown as far as that."""

NOT_IN_THE_CALLS = {
    "device-stuck": "the device of that rank stopped, and the program of two other ranks would not",
    "stalled-collective": "all ranks made the same call, which two others would complete",
}
"""Findings that no calls can reproduce."""

WHICH_CALL = ("order", "missing", "extra", "call_site", "progress")
"""Causes for which it matters which call of the program it is: each gets numbers of its own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two ranks and their calls.

    Attributes:
        right, wrong: (rank, its calls) of one of the others, and of a culprit.
        members: of the group. which_call: whether calls of different places get different numbers.
    """

    right: tuple[int, Sequence[Event]]
    wrong: tuple[int, Sequence[Event]]
    members: tuple[int, ...]
    which_call: bool = False

    @property
    def events(self) -> list[Event]:
        return [*self.right[1], *self.wrong[1]]


def script(evidence: Evidence, diagnosis: Diagnosis, name: str) -> str:
    """The text of a script that shows the headline's fault.

    Args:
        name: of the file, to show.

    Raises:
        NoAnswer: no fault was found, or it is not one that calls make.
    """
    finding = diagnosis.findings[0] if diagnosis.findings else None
    if finding is None:
        raise NoAnswer("no script can show this: no fault was found")
    case = None if finding.code in NOT_IN_THE_CALLS else _case(evidence, finding)
    if case is None:
        reason = NOT_IN_THE_CALLS.get(finding.code, f"`{finding.code}` is not a fault between two ranks' calls")
        raise NoAnswer(f"no script can show this: {reason}")
    text = files("meshwright.diagnose").joinpath("two_ranks.py.template").read_text(encoding="utf-8")
    right, wrong = _shown(case)
    words = {"HEADLINE": _plain(finding.title), "CULPRITS": ranks_text(finding.ranks), "NAME": _plain(name)}
    for key, value in (words | {"CALLS_0": right, "CALLS_1": wrong}).items():
        text = text.replace(f"@{key}@", value)
    return text


def _plain(text: str) -> str:
    """Safe inside the script's docstring: names come from files."""
    return "".join(letter if letter.isprintable() and letter not in '\\"@' else "?" for letter in text)


# --- which two ranks, and which of their calls ------------------------------------------------------------------


def _case(evidence: Evidence, finding: Finding) -> Case | None:
    for first in evidence.derived(disagreements)[:1]:
        if tuple(sorted(first.ranks)) == finding.ranks and first.found.group == finding.group:
            return _of_disagreement(evidence, first)
    still = evidence.derived(standstill)
    if finding.code == "waiting-in-a-circle":
        waits = [wait for rank in finding.ranks for wait in still.waits.get(rank, ()) if wait.absent & set(finding.ranks)]
        one = waits[0]
        other = next((wait for wait in waits if wait.rank in one.absent and one.rank in wait.absent), None)
        if other is None:
            return None  # a circle of three or more: two ranks cannot make it
        return Case(right=(one.rank, [one.call.event]), wrong=(other.rank, [other.call.event]), members=one.members)
    if finding.code in ("missing-rank", "silent-rank"):
        first_wait = next(waiters(still, finding.ranks))[0]
        return Case(right=(first_wait.rank, [first_wait.call.event]), wrong=(finding.ranks[0], []), members=first_wait.members)
    return None


def _of_disagreement(evidence: Evidence, first: Disagreement) -> Case:
    """What a culprit and one of the others did, from the divergence to where they meet again."""
    found = first.found
    group = evidence.derived(job_of).groups[found.group]
    culprit = first.ranks[-1]
    others = [rank for rank in found.events if rank not in first.ranks] or [rank for rank in found.events if rank != culprit]
    if first.cause == "splits":
        others.sort(key=lambda rank: not _misfits(group.ranks, found.events, rank, culprit))
    pair = (others[0], culprit)
    if found.events[culprit].kind == "p2p":
        made = [[found.events[rank]] for rank in pair]
    else:
        calls = calls_of(evidence, found.group)
        length = _length(calls, found.seq, pair) if first.cause == "order" else 2 if first.cause in ("missing", "extra") else 1
        made = [list(calls[rank][found.seq : found.seq + length]) for rank in pair]
    return Case(right=(pair[0], made[0]), wrong=(pair[1], made[1]), members=group.ranks, which_call=first.cause in WHICH_CALL)


def _length(calls: Mapping[int, Sequence[Event]], start: int, pair: tuple[int, int]) -> int:
    """How many calls it takes until both ranks have made the same ones."""
    for length in range(1, MAX_CALLS + 1):
        one, other = (sorted(map(_identity, calls[rank][start : start + length])) for rank in pair)
        if one == other:
            return length
    return MAX_CALLS


def _misfits(members: Sequence[int], events: Mapping[int, Event], one: int, other: int) -> bool:
    """Whether what these two send each other is not what they expect."""
    a, b = members.index(one), members.index(other)
    sizes = {len(splits) for rank in (one, other) for splits in (events[rank].input_splits, events[rank].output_splits)}
    if sizes != {len(members)}:
        return True
    there = events[one].input_splits[b] == events[other].output_splits[a]
    return not (there and events[other].input_splits[a] == events[one].output_splits[b])


def _identity(event: Event) -> str:
    """Which call of the program it is."""
    return repr((event.op, event.module, event.call_site, event.step, event.micro_batch))


# --- the calls as Python ----------------------------------------------------------------------------------------


def _shown(case: Case) -> tuple[str, str]:
    sizes = _small(size for event in case.events for size in (*event.shape, *event.input_splits, *event.output_splits))
    numbers = {identity: 3 + 2 * number for number, identity in enumerate(dict.fromkeys(map(_identity, case.events)))}
    texts = []
    for _, calls in (case.right, case.wrong):
        made = [_call(event, case, sizes, numbers[_identity(event)] if case.which_call else 3) for event in calls]
        texts.append(pprint.pformat(made, width=120, sort_dicts=False).replace("\n", "\n    "))
    return texts[0], texts[1]


def _small(sizes: Iterable[int]) -> dict[int, int]:
    """1 and 0 stay, the others become 2, 4, 6, ... in their order: even, so that two ranks can share them."""
    found = set(sizes)
    distinct = sorted(size for size in found if size > 1)
    return {0: 0, 1: 1} | {size: 0 for size in found if size < 0} | {size: 2 * (number + 1) for number, size in enumerate(distinct)}


def _call(event: Event, case: Case, sizes: Mapping[int, int], value: int) -> dict[str, Any]:
    sides = {case.right[0]: 0, case.wrong[0]: 1}
    sends, receives = _rows(event, case, sizes)
    return {
        "group": event.group, "op": event.op, "reduce_op": event.reduce_op, "dtype": TORCH_DTYPES.get(event.dtype, event.dtype),
        "shape": [sizes[size] for size in event.shape] or [1], "value": value,
        "peer": 0 if event.peer is None else sides.get(event.peer, 0), "tag": event.tag or 0,
        "sends": sends, "receives": receives, "module": event.module, "site": event.call_site,
    }  # fmt: skip


def _rows(event: Event, case: Case, sizes: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """The rows of an all_to_all between the two ranks of the script alone; even ones where the source does not tell splits."""
    if event.op != "all_to_all":
        return [], []
    places = [case.members.index(rank) for rank, _ in (case.right, case.wrong)]
    if len(event.input_splits) != len(case.members) or len(event.output_splits) != len(case.members):
        rows = sizes[event.shape[0]] if event.shape else 2
        return [rows - rows // 2, rows // 2], [rows - rows // 2, rows // 2]
    return [sizes[event.input_splits[place]] for place in places], [sizes[event.output_splits[place]] for place in places]
