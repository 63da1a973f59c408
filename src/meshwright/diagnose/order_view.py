"""What the ranks of a group called, side by side and in order, round the first place at which they do not agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.diagnose.agreement import calls_of, disagreements
from meshwright.diagnose.calls import Call, RankCalls
from meshwright.diagnose.job import job_of

if TYPE_CHECKING:
    from meshwright.diagnose.evidence import Evidence
    from meshwright.diagnose.finding import Diagnosis
    from meshwright.recording.events import Event

__all__ = ["OrderView", "Row", "order_views"]

BEFORE, AFTER = 4, 5
"""Calls that are shown before and after the first divergence."""

MAX_RANKS = 24
"""Columns: the culprits and the first of the others."""

MAX_VIEWS = 6


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of the group's calls. cells: by rank, "" where the rank did not call. first: whether it is the first divergence.
    odd: ranks whose cell differs from the commonest one."""

    number: int
    cells: Mapping[int, str]
    first: bool
    odd: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OrderView:
    """A group. ranks: the columns. left_out: ranks of the group that are not shown."""

    group: str
    ranks: tuple[int, ...]
    rows: tuple[Row, ...]
    left_out: int


def order_views(evidence: Evidence, diagnosis: Diagnosis) -> list[OrderView]:
    """Of the groups that the findings are about, and of each in which ranks disagree; [] where no calls were read."""
    if not evidence.derived(job_of).ranks:
        return []
    culprits = {finding.group: finding.ranks for finding in reversed(diagnosis.findings) if finding.group}
    for each in reversed(evidence.derived(disagreements)):
        culprits.setdefault(each.found.group, each.ranks)
    named = [finding.group for finding in diagnosis.findings if finding.group]
    groups = list(dict.fromkeys([*named, *culprits]))[:MAX_VIEWS]
    views = (_view(evidence, group, culprits.get(group, ())) for group in groups)
    return [view for view in views if view is not None]


def _view(evidence: Evidence, group: str, culprits: tuple[int, ...]) -> OrderView | None:
    numbered = {rank: dict(_numbered(events)) for rank, events in calls_of(evidence, group).items()}
    done = _pending(evidence, group)
    job = evidence.derived(job_of)
    members = tuple(job.groups[group].ranks) if group in job.groups else tuple(sorted(numbered))
    if not any(numbered.values()):
        return None
    shown = tuple(sorted({*(rank for rank in culprits if rank in members), *members[:MAX_RANKS]}))[:MAX_RANKS]
    numbers = sorted({number for calls in numbered.values() for number in calls})
    rows = [_row(number, shown, numbered, done, job.ranks) for number in numbers]
    first = next((place for place, row in enumerate(rows) if row.odd), len(rows) - 1)
    kept = rows[max(first - BEFORE, 0) : first + AFTER + 1]
    marked = tuple(Row(number=row.number, cells=row.cells, odd=row.odd, first=bool(row.odd) and row is rows[first]) for row in kept)
    return OrderView(group=group, ranks=shown, rows=marked, left_out=len(members) - len(shown))


def _numbered(events: list[Event]) -> Iterator[tuple[int, Event]]:
    for place, event in enumerate(events):
        yield (place if event.seq is None else event.seq), event


def _pending(evidence: Evidence, group: str) -> dict[int, set[int]]:
    """Numbers of the calls that each rank entered and did not complete."""
    found: dict[int, set[int]] = {}
    for rank, record in evidence.derived(job_of).ranks.items():
        calls: tuple[Call, ...] = record.by_place.get((group, "collective"), ())
        found[rank] = {call.event.seq for call in calls if call.done is False and call.event.seq is not None}
    return found


def _row(
    number: int, shown: tuple[int, ...], numbered: Mapping[int, Mapping[int, Event]], pending: Mapping[int, set[int]],
    known: Mapping[int, RankCalls],
) -> Row:  # fmt: skip
    cells: dict[int, str] = {}
    kinds: dict[int, tuple[object, ...]] = {}
    for rank in shown:
        event = numbered.get(rank, {}).get(number)
        kinds[rank] = () if event is None else _kind(event)
        if rank not in known:
            cells[rank] = "no file"
        elif event is None:
            cells[rank] = ""
        else:
            cells[rank] = _told(event) + (" (not completed)" if number in pending.get(rank, ()) else "")
    made = Counter(kind for kind in kinds.values() if kind)
    common = made.most_common(1)[0][0] if made else ()
    return Row(number=number, cells=cells, first=False, odd=tuple(rank for rank in shown if kinds[rank] != common))


def _kind(event: Event) -> tuple[object, ...]:
    """What must be equal on all ranks: of an all_to_all, rows differ as tokens do."""
    shape = event.shape[1:] if event.op == "all_to_all" else event.shape
    return event.op, event.reduce_op, event.dtype, shape


def _told(event: Event) -> str:
    reduce = f"({event.reduce_op})" if event.reduce_op else ""
    tensor = f" {event.dtype}{list(event.shape)}" if event.dtype else ""
    splits = f" {list(event.input_splits)}" if event.input_splits else ""
    site = f" {event.call_site}" if event.call_site else ""
    return f"{event.op}{reduce}{tensor}{splits}{site}"
