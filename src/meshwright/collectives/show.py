"""Show a collective chunk by chunk and step by step, as text: who sends what to whom, and what each rank then holds."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from meshwright.collectives.algorithms.steplist import StepList
from meshwright.collectives.verify import Counts, initial, walk, wanted
from meshwright.errors import InputError, Mistake

MAX_CELLS = 40_000
"""Ranks x chunks x steps that are still worth looking at (a ring over 32 ranks has 63,488)."""
LINE = 110
"""Columns of a line of text, if it does not hold a single table that is wider."""


def show_text(steps: StepList, name: str) -> str:
    """The whole collective as text; ``name`` is the algorithm's.

    A cell tells whose contributions the rank's chunk holds: ``.`` nothing, ``2`` rank 2's own, ``0-2`` the sum of ranks 0 to
    2; ``*`` marks what the collective defines and is complete.
    Raises InputError for a collective too large to look at.
    """
    check_size(steps)
    lines = [title(steps, name), "", "start", *_table(steps, initial(steps))]
    for index, (_, after) in enumerate(walk(steps)):
        lines += ["", f"step {index + 1} of {steps.num_steps}", *_wrapped(messages(steps, index)), *_table(steps, after)]
    return "\n".join(lines) + "\n"


def check_size(steps: StepList) -> None:
    """Raises InputError where there are more cells than a reader could follow."""
    cells = steps.ranks * steps.chunks * max(steps.num_steps, 1)
    if cells > MAX_CELLS:
        hint = f"{steps.op} shows the same on 4, 5 or 8 ranks"
        raise InputError(
            [
                Mistake(
                    "command line",
                    "--ranks",
                    steps.ranks,
                    "fewer ranks with --show",
                    hint,
                    f"is too many to look at: {cells:,} cells, more than {MAX_CELLS:,}",
                )
            ]
        )


def title(steps: StepList, name: str) -> str:
    """One line: what is shown, and how to read it."""
    pieces = "blocks source>destination" if steps.op == "all_to_all" else f"{steps.chunks} chunk{'s' * (steps.chunks != 1)}"
    return f"{steps.op} {name}: {steps.ranks} ranks, {pieces}, {steps.num_steps} steps, {len(steps)} chunks sent"


def messages(steps: StepList, index: int) -> list[str]:
    """The messages of one step, ``0 -> 1: +3`` for chunk 3 that is added, ``0 -> 1: 3`` for one that overwrites."""
    rows = np.flatnonzero(steps.step == index)
    order = sorted((int(steps.sender[r]), int(steps.receiver[r]), int(r)) for r in rows)
    found = []
    for (sender, receiver), group in groupby(order, key=itemgetter(0, 1)):
        pieces = [("+" if steps.reduce[r] else "") + chunk_name(steps, int(steps.chunk[r])) for _, _, r in group]
        found.append(f"{sender} -> {receiver}: {' '.join(pieces)}")
    return found


def chunk_name(steps: StepList, chunk: int) -> str:
    """``3``, or ``0>3`` for the block of an all_to_all that rank 0 sends to rank 3."""
    return f"{chunk // steps.ranks}>{chunk % steps.ranks}" if steps.op == "all_to_all" else str(chunk)


def contributors(steps: StepList, held: Counts, chunk: int) -> str:
    """Whose contributions are in one cell, as ranges of ranks: ``0-2,5``; ``.`` for none; ``5 of 16`` where that is long."""
    if steps.op == "all_to_all":
        return str(chunk // steps.ranks) if held[0] else "."
    sources = np.flatnonzero(held)
    if not len(sources):
        return "."
    breaks = np.flatnonzero(np.diff(sources) > 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(sources, breaks)]
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return text if len(text) <= 8 else f"{len(sources)} of {steps.ranks}"


def complete(steps: StepList, held: Counts) -> NDArray[np.bool_]:
    """Which cells the collective defines and already holds in full: bool[ranks, chunks]."""
    defined, counts = wanted(steps)
    right: NDArray[np.bool_] = (held == counts).all(axis=-1)
    return defined & right


def _table(steps: StepList, held: Counts) -> list[str]:
    done = complete(steps, held)
    names = [chunk_name(steps, chunk) for chunk in range(steps.chunks)]
    cells = [
        [contributors(steps, held[rank, chunk], chunk) + "*" * bool(done[rank, chunk]) for chunk in range(steps.chunks)]
        for rank in range(steps.ranks)
    ]
    widths = [max(len(row[chunk]) for row in [names, *cells]) for chunk in range(steps.chunks)]
    label = len(f"rank {steps.ranks - 1}")
    lines = [" ".join(["  " + "chunk".ljust(label), *(n.ljust(w) for n, w in zip(names, widths, strict=True))])]
    for rank, row in enumerate(cells):
        lines.append(" ".join(["  " + f"rank {rank}".ljust(label), *(c.ljust(w) for c, w in zip(row, widths, strict=True))]))
    return [line.rstrip() for line in lines]


def _wrapped(items: list[str]) -> list[str]:
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= LINE:
            lines[-1] += "   " + item
        else:
            lines.append("  " + item)
    return lines
