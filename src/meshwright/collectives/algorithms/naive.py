"""Through one root, which talks to one rank at a time: what everybody writes first, and why nobody keeps it.

No source: the definition of each collective, carried out. n = ``ranks``, M = ``payload_bytes``, root = rank 0.
"""

from __future__ import annotations

import numpy as np

from meshwright.arithmetic import Num
from meshwright.collectives.algorithms.steplist import Part, StepList, from_parts, mirrored


def all_reduce(ranks: int) -> StepList:
    """The root receives and adds every rank's whole tensor, one after the other, then sends the sum to each."""
    others = range(1, ranks)
    to_root: list[list[Part]] = [[(rank, 0, 0, True)] for rank in others]
    return from_parts("all_reduce", ranks, 1, to_root + [[(0, rank, 0, False)] for rank in others])


def all_gather(ranks: int) -> StepList:
    """The root receives every rank's chunk, then sends each rank the n - 1 chunks that it lacks."""
    others = range(1, ranks)
    to_root: list[list[Part]] = [[(rank, 0, rank, False)] for rank in others]
    missing = [[(0, rank, np.delete(np.arange(ranks), rank), False)] for rank in others]
    return from_parts("all_gather", ranks, ranks, [*to_root, *missing])


def reduce_scatter(ranks: int) -> StepList:
    """The all_gather backwards: all chunks but its own to the root, then the owner's chunk back, to which it adds its own."""
    return mirrored(all_gather(ranks))


def steps(ranks: Num) -> Num:
    """2 (n - 1), for each of the three."""
    return 2 * (ranks - 1)


def all_reduce_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes the root sends: (n - 1) M; every other rank sends M."""
    return (ranks - 1) * payload_bytes


def all_gather_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes the root sends: n - 1 chunks of M/n to each of n - 1 ranks."""
    return (ranks - 1) ** 2 / ranks * payload_bytes


def reduce_scatter_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes each rank sends, (n - 1)/n M; it is the root's (n - 1)^2/n M to *receive* that take the time."""
    return (ranks - 1) / ranks * payload_bytes


def all_reduce_total_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Summed over ranks: 2 (n - 1) M, the same as a ring's. Only the spread is bad."""
    return 2 * (ranks - 1) * payload_bytes


def half_total_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Summed over ranks, all_gather or reduce_scatter: (n - 1) M."""
    return (ranks - 1) * payload_bytes
