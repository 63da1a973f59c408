"""A schedule as the CSV file of torch.distributed.pipelining: one row per rank, one cell per action (``2F0``, ``3SEND_B1``).

Idle cells are empty. A forward and a backward that run as one are ``(2F4;5B0)OVERLAP_F_B``. Such a file may hold computations
only, or messages, too. Cells about parameter sharding (UNSHARD, RESHARD, REDUCE_GRAD) say nothing about the order of the
pipeline and are passed over when reading.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from meshwright.errors import InputError, Mistake, Mistakes
from meshwright.schedule.actions import Action, Kind, Schedule, parse_action, print_action
from meshwright.schedule.check import check
from meshwright.spec.files import read_text

__all__ = ["print_csv", "read_csv", "write_csv"]

MOST_MISTAKES = 100
"""A file with more is of another kind."""

_PAIR = re.compile(r"\((?P<forward>[^;()]+);(?P<backward>[^;()]+)\)OVERLAP_F_B")
_SHARDING = re.compile(r"[0-9]+(UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*")


def read_csv(path: str | Path) -> Schedule:
    """Read a schedule and check it.

    Chunks are placed where their actions stand; the number of micro-batches is the highest one named, plus one.

    Raises:
        InputError: a cell that is no action, a chunk on two ranks, or whatever check.py finds (a missing backward, an impossible
            order, a deadlock), each with rank, step and action. Steps count the rank's actions from 0, idle cells left out.
    """
    file = str(path)
    rows = _rows(Path(path))
    with Mistakes.of(file) as mistakes:
        lists = [_read_row(rank, row, mistakes) for rank, row in enumerate(rows) if len(mistakes.found) < MOST_MISTAKES]
        if not any(lists) and not mistakes.found:
            mistakes.add("", None, "one row of actions per rank", problem="has no actions")
    with Mistakes.of(file) as mistakes:
        rank_of_chunk = _place(lists, mistakes)
        num_micro_batches = _count_micro_batches(lists, mistakes)
    schedule = Schedule(file, len(lists), num_micro_batches, rank_of_chunk, tuple(map(tuple, lists)))
    check(schedule)
    return schedule


def _rows(path: Path) -> list[list[str]]:
    """The cells; an editor's empty lines at the end are no ranks."""
    text = read_text(path, "a CSV file of torch's pipelining format")
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise InputError([Mistake(str(path), "", None, "comma-separated values", problem=f"is not a table: {error}")]) from None
    while rows and not rows[-1]:
        rows.pop()
    return rows


def _count_micro_batches(lists: list[list[Action]], mistakes: Mistakes) -> int:
    """The highest number plus one, which is a slip where there are fewer actions than that."""
    highest = max((action for actions in lists for action in actions), key=lambda action: action.micro_batch)
    if highest.micro_batch >= sum(map(len, lists)):
        mistakes.add("micro-batch", str(highest), "micro-batches numbered from 0 without gaps", problem="has no others before it")
    return highest.micro_batch + 1


def _read_row(rank: int, row: list[str], mistakes: Mistakes) -> list[Action]:
    actions: list[Action] = []
    for cell in (cell.strip() for cell in row):
        if not cell or _SHARDING.fullmatch(cell):
            continue
        try:
            actions += _read_cell(cell)
        except ValueError:
            mistakes.add(f"rank {rank}, step {len(actions)}", cell, "[chunk][F B I W SEND_F RECV_F SEND_B RECV_B][micro-batch], e.g. 2F0",
                         problem="is not an action")  # fmt: skip
    return actions


def _read_cell(cell: str) -> list[Action]:
    pair = _PAIR.fullmatch(cell)
    if pair is None:
        return [parse_action(cell)]
    forward, backward = parse_action(pair["forward"]), parse_action(pair["backward"])
    if forward.kind != Kind.FORWARD or backward.kind not in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        raise ValueError(cell)
    return [forward._replace(pairs_with_next=True), backward]


def _place(lists: list[list[Action]], mistakes: Mistakes) -> tuple[int, ...]:
    """The rank of each chunk."""
    ranks: dict[int, int] = {}
    for rank, actions in enumerate(lists):
        if len(mistakes.found) >= MOST_MISTAKES:
            break
        if not actions:
            mistakes.add(f"rank {rank}", None, "at least one chunk on every rank", problem="has no actions")
        for step, action in enumerate(actions):
            if ranks.setdefault(action.chunk, rank) != rank:
                mistakes.add(f"rank {rank}, step {step}", str(action), f"chunk {action.chunk} on one rank only",
                             problem=f"is on a chunk that rank {ranks[action.chunk]} holds")  # fmt: skip
                break
    for chunk in range(max(ranks, default=-1) + 1):
        if chunk not in ranks:
            mistakes.add("chunk", chunk, "chunks numbered from 0 without gaps", problem="has no actions on any rank")
            break
    return tuple(ranks.get(chunk, 0) for chunk in range(len(ranks)))


def write_csv(schedule: Schedule, path: str | Path) -> None:
    """Write the lists as they are; see print_csv."""
    Path(path).write_text(print_csv(schedule), encoding="utf-8")


def print_csv(schedule: Schedule) -> str:
    """The text of the CSV file, with the messages if the lists have them (communication.py adds them).

    Raises:
        InputError: two copies of the model (dualpipe): torch's format has no word for them.
    """
    if schedule.copies > 1:
        raise InputError([Mistake(
            schedule.name, "pp", schedule.name, "a schedule with one copy of the model", "dualpipe-v is the same order without the copy",
            "has two copies of the model, which torch's format cannot say",
        )])  # fmt: skip
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for actions in schedule:
        cells: list[str] = []
        for action in actions:
            if cells and cells[-1].startswith("(") and cells[-1].endswith(";"):
                cells[-1] += f"{print_action(action)})OVERLAP_F_B"
            else:
                cells.append(f"({print_action(action)};" if action.pairs_with_next else print_action(action))
        writer.writerow(cells)
    return out.getvalue()
