"""Logarithmic algorithms for any n: Bruck's and, with the far peers first, PAT's.

Sources: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997), sections 3 and 4 (their n = our ``ranks``, radix
2); Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv:2506.20252 (2025): the
same trees with the dimensions in the other order, so that the farthest message is the smallest. PAT as in NCCL also
limits its buffers and then needs more steps; here it is fully aggregated, as for small sizes.

Every chunk spreads from its owner along a binomial tree; all owners' trees are the same, shifted, and run together, so
that each rank has one peer per step. d is a rank's distance from the owner.
"""

from __future__ import annotations

import numpy as np

from meshwright.arithmetic import Num, ceil_log2, larger
from meshwright.collectives.algorithms.steplist import Part, StepList, from_parts, mirrored, one_after_the_other
from meshwright.collectives.volume import ring_all_gather_wire_bytes, ring_all_reduce_wire_bytes


def all_gather(ranks: int) -> StepList:
    """Bruck: in step k the ranks at distance d < 2^k pass the chunk to d + 2^k; all that is known travels ever farther."""
    return _gather(ranks, [(bit, np.arange(min(bit, ranks - bit))) for bit in _bits(ranks)])


def reduce_scatter(ranks: int) -> StepList:
    """Bruck's all_gather backwards."""
    return mirrored(all_gather(ranks))


def pat_all_gather(ranks: int) -> StepList:
    """PAT: the farthest hop first, with one chunk; in the last step neighbours exchange half of all chunks."""
    return _gather(ranks, [(bit, np.arange(0, ranks - bit, 2 * bit)) for bit in reversed(_bits(ranks))])


def pat_reduce_scatter(ranks: int) -> StepList:
    """PAT's all_gather backwards: neighbours first, and one chunk over the farthest hop at the end."""
    return mirrored(pat_all_gather(ranks))


def all_reduce(ranks: int) -> StepList:
    """PAT's reduce_scatter, then its all_gather: both keep the large messages near."""
    return one_after_the_other("all_reduce", pat_reduce_scatter(ranks), pat_all_gather(ranks))


def all_to_all(ranks: int) -> StepList:
    """Bruck: a block that has to go d ranks on takes one hop for each bit set in d, lowest first."""
    steps: list[list[Part]] = []
    source = np.arange(ranks)[:, None]
    for bit in _bits(ranks):
        distance = np.arange(ranks)[np.arange(ranks) & bit > 0]
        at = source + (distance & (bit - 1))
        steps.append([(at % ranks, (at + bit) % ranks, source * ranks + (source + distance) % ranks, False)])
    return from_parts("all_to_all", ranks, ranks * ranks, steps)


def _bits(ranks: int) -> list[int]:
    return [1 << k for k in range((ranks - 1).bit_length())]


def _gather(ranks: int, hops: list[tuple[int, np.ndarray]]) -> StepList:
    owner = np.arange(ranks)[:, None]
    steps: list[list[Part]] = [[((owner + d) % ranks, (owner + d + bit) % ranks, owner, False)] for bit, d in hops]
    return from_parts("all_gather", ranks, ranks, steps)


def half_steps(ranks: Num) -> Num:
    """Steps of an all_gather or reduce_scatter, and of Bruck's all_to_all: ceil(log2 n)."""
    return ceil_log2(ranks)


def all_reduce_steps(ranks: Num) -> Num:
    """2 ceil(log2 n)."""
    return 2 * half_steps(ranks)


half_wire_bytes = ring_all_gather_wire_bytes
"""Bytes each rank sends in an all_gather or reduce_scatter: each chunk reaches each rank once, as on a ring."""

all_reduce_wire_bytes = ring_all_reduce_wire_bytes
"""Bytes each rank sends: twice that."""


def all_to_all_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes each rank sends: a block of M/n for every bit set in 1 .. n-1, about M/2 log2 n.

    The set bits of all numbers below n at place k are ``n // 2^(k+1) * 2^k + max(0, n mod 2^(k+1) - 2^k)``.
    """
    ones: Num = 0 * ranks
    for k in range(int(np.max(ceil_log2(ranks)))):
        ones = ones + ranks // 2 ** (k + 1) * 2**k + larger(0, ranks % 2 ** (k + 1) - 2**k)
    return ones * payload_bytes / ranks
