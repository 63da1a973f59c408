"""The ring: every rank sends to its neighbour only; least bytes, most steps.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
Distrib. Comput. 69 (2009), section 3; their N = our ``ranks`` n, their m = our ``payload_bytes`` M.
"""

from __future__ import annotations

import numpy as np

from meshwright.arithmetic import Num
from meshwright.collectives.algorithms.steplist import StepList, from_parts, one_after_the_other
from meshwright.collectives.volume import ring_all_gather_wire_bytes, ring_all_reduce_wire_bytes


def all_gather(ranks: int) -> StepList:
    """Step s: rank r passes on chunk r - s, which it got in the step before (its own in step 0)."""
    rank = np.arange(ranks)
    return from_parts("all_gather", ranks, ranks, [[(rank, (rank + 1) % ranks, (rank - s) % ranks, False)] for s in range(ranks - 1)])


def reduce_scatter(ranks: int) -> StepList:
    """Step s: rank r adds to its sum of chunk r - 1 - s what came in, and sends it on; every sum ends with its owner."""
    rank = np.arange(ranks)
    steps = [[(rank, (rank + 1) % ranks, (rank - 1 - s) % ranks, True)] for s in range(ranks - 1)]
    return from_parts("reduce_scatter", ranks, ranks, steps)


def all_reduce(ranks: int) -> StepList:
    """reduce_scatter, then all_gather."""
    return one_after_the_other("all_reduce", reduce_scatter(ranks), all_gather(ranks))


def half_steps(ranks: Num) -> Num:
    """Steps of an all_gather or a reduce_scatter: n - 1."""
    return ranks - 1


def all_reduce_steps(ranks: Num) -> Num:
    """2 (n - 1)."""
    return 2 * (ranks - 1)


half_wire_bytes = ring_all_gather_wire_bytes
"""Bytes each rank sends in an all_gather or a reduce_scatter of the full tensor M."""

all_reduce_wire_bytes = ring_all_reduce_wire_bytes
"""Bytes each rank sends; the least that any all_reduce without a reducing switch can do (Theorem 1 there)."""
