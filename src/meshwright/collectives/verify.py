"""Check a step list by carrying it out on symbols: does every rank end with the right sum, or the right pieces?

A symbol is how often each rank's contribution is in a chunk: ``held[rank, chunk, source]``. Adding adds counts,
overwriting copies them. A sum is right when every count is one: nothing missing, nothing counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwright.collectives.algorithms.steplist import StepList

Counts = NDArray[np.int16]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a step list: in which step (None: at the end), on which rank, with which chunk."""

    step: int | None
    rank: int
    chunk: int
    what: str

    def __str__(self) -> str:
        when = "at the end" if self.step is None else f"in step {self.step}"
        return f"{when}, rank {self.rank}, chunk {self.chunk}: {self.what}"


def verify(steps: StepList) -> list[Fault]:
    """All faults of a step list; an empty list means that it computes its collective.

    Time and memory grow as ranks^2 x chunks, ranks x chunks for all_to_all.
    """
    faults: list[Fault] = []
    held = initial(steps)
    for index, (_, held) in enumerate(walk(steps)):
        rows = np.flatnonzero(steps.step == index)
        faults += _conflicts(steps, index, rows)
        faults += _double(held, steps, index, rows)
    return faults + _at_the_end(steps, held)


def initial(steps: StepList) -> Counts:
    """What each rank holds before the first step: int16[ranks, chunks, sources].

    all_reduce, reduce_scatter: its own contribution to every chunk. all_gather: the chunks it owns. all_to_all: the
    blocks it sends; they are never added, so that one count (held or not) stands for all sources.
    """
    ranks, chunks = steps.ranks, steps.chunks
    if steps.op == "all_to_all":
        held = np.zeros((ranks, chunks, 1), dtype=np.int16)
        held[np.arange(chunks) // ranks, np.arange(chunks)] = 1
        return held
    held = np.zeros((ranks, chunks, ranks), dtype=np.int16)
    if steps.op == "all_gather":
        held[steps.owner(), np.arange(chunks), steps.owner()] = 1
    else:
        held[np.arange(ranks), :, np.arange(ranks)] = 1
    return held


def walk(steps: StepList) -> Iterator[tuple[Counts, Counts]]:
    """For each step what the ranks hold before and after it; all transfers of a step read the state before."""
    held = initial(steps)
    bounds = np.searchsorted(steps.step, np.arange(steps.num_steps + 1))
    for begin, end in pairwise(bounds):
        sender, receiver = steps.sender[begin:end], steps.receiver[begin:end]
        chunk, adds = steps.chunk[begin:end], steps.reduce[begin:end]
        before, held = held, held.copy()
        held[receiver[~adds], chunk[~adds]] = before[sender[~adds], chunk[~adds]]
        np.add.at(held, (receiver[adds], chunk[adds]), before[sender[adds], chunk[adds]])
        yield before, held


def wanted(steps: StepList) -> tuple[NDArray[np.bool_], Counts]:
    """Which (rank, chunk) the collective defines at the end, bool[ranks, chunks], and their right counts [chunks, sources]."""
    ranks, chunks = steps.ranks, steps.chunks
    if steps.op == "all_to_all":
        return np.arange(chunks) % ranks == np.arange(ranks)[:, None], np.ones((chunks, 1), dtype=np.int16)
    counts = np.ones((chunks, ranks), dtype=np.int16)
    if steps.op == "all_gather":
        counts = (steps.owner()[:, None] == np.arange(ranks)).astype(np.int16)
    defined = np.ones((ranks, chunks), dtype=np.bool_)
    if steps.op == "reduce_scatter":
        defined = steps.owner() == np.arange(ranks)[:, None]
    return defined, counts


def _conflicts(steps: StepList, index: int, rows: NDArray[np.int64]) -> list[Fault]:
    """Sends to oneself, and two arrivals in one place of which one overwrites: the result would depend on the order."""
    faults = [
        Fault(index, int(steps.sender[r]), int(steps.chunk[r]), "sends to itself") for r in rows if steps.sender[r] == steps.receiver[r]
    ]
    place = steps.receiver[rows] * steps.chunks + steps.chunk[rows]
    arrivals = np.bincount(place, minlength=0)
    clash = rows[(arrivals[place] > 1) & ~steps.reduce[rows]]
    return faults + [Fault(index, int(steps.receiver[r]), int(steps.chunk[r]), "is overwritten by one of several arrivals") for r in clash]


def _double(held: Counts, steps: StepList, index: int, rows: NDArray[np.int64]) -> list[Fault]:
    added = rows[steps.reduce[rows]]
    worst = held[steps.receiver[added], steps.chunk[added]].max(axis=-1, initial=0)
    return [Fault(index, int(steps.receiver[r]), int(steps.chunk[r]), "counts a contribution twice") for r in added[worst > 1]]


def _at_the_end(steps: StepList, held: Counts) -> list[Fault]:
    defined, counts = wanted(steps)
    wrong = defined & (held != counts).any(axis=-1)
    return [Fault(None, int(rank), int(chunk), _difference(held[rank, chunk], counts[chunk])) for rank, chunk in np.argwhere(wrong)]


def _difference(held: Counts, counts: Counts) -> str:
    if len(counts) == 1:
        return "the block has not arrived"
    missing, extra = np.flatnonzero(held < counts), np.flatnonzero(held > counts)
    parts = [
        f"{word} {', '.join(map(str, ranks))}" for word, ranks in (("lacks rank", missing), ("has too much of rank", extra)) if len(ranks)
    ]
    return "; ".join(parts)
