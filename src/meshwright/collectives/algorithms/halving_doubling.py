"""Recursive halving and doubling: a ring's bytes in log2 n exchanges, for powers of two; others fold the excess first.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", Int. J. High
Perform. Comput. Appl. 19 (2005), section 4.5 (Rabenseifner's algorithm); their p = our ``ranks`` n, their n = our
``payload_bytes`` M. NCCL does not have it; Gloo and MPI do.

With p = 2^floor(log2 n), the 2 (n - p) first ranks pair up: the even one gives its whole tensor to the odd one before and
gets the sum back after. Nearest neighbours exchange halves, then quarters with the next nearest, and so on, so that the
largest messages travel the shortest way.
"""

from __future__ import annotations

import numpy as np

from meshwright.arithmetic import Num, ceil_log2
from meshwright.collectives.algorithms.steplist import Ints, Part, StepList, from_parts


def all_reduce(ranks: int) -> StepList:
    """Fold, halve (each step the partners split what they share), double (the same backwards), unfold."""
    levels = ranks.bit_length() - 1
    power = 1 << levels
    excess = ranks - power
    folded = 2 * np.arange(excess)
    active = np.concatenate([folded + 1, np.arange(2 * excess, ranks)])
    chunks = np.arange(power)
    fold: list[list[Part]] = [[(folded[:, None], folded[:, None] + 1, chunks, True)]] if excess else []
    unfold: list[list[Part]] = [[(folded[:, None] + 1, folded[:, None], chunks, False)]] if excess else []
    halve = [[_halves(active, level, reduce=True)] for level in range(levels)]
    double = [[_halves(active, level, reduce=False)] for level in reversed(range(levels))]
    return from_parts("all_reduce", ranks, power, [*fold, *halve, *double, *unfold])


def _halves(active: Ints, level: int, reduce: bool) -> Part:
    """Partners differ in bit ``level``; both know the chunks that agree with them in all lower bits.

    Halving sends those that agree with the partner in the bit itself; doubling sends those that agree with the sender.
    """
    index = np.arange(len(active))
    partner = index ^ (1 << level)
    side = partner if reduce else index
    high = np.arange(len(active) >> (level + 1)) << (level + 1)
    chunks = high[None, :] | (side & ((1 << (level + 1)) - 1))[:, None]
    return active[:, None], active[partner][:, None], chunks, reduce


def _floor_log2(ranks: Num) -> Num:
    return ceil_log2(ranks + 1) - 1


def all_reduce_steps(ranks: Num) -> Num:
    """2 log2 n; for other n 2 floor(log2 n) + 2, the fold and the unfold."""
    levels = _floor_log2(ranks)
    return 2 * levels + 2 * (2**levels < ranks)


def all_reduce_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes the busiest rank sends: 2 (p - 1)/p M, and M more to hand the sum to a folded rank."""
    power = 2 ** _floor_log2(ranks)
    return 2 * (power - 1) * payload_bytes / power + (power < ranks) * payload_bytes


def all_reduce_total_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Summed over ranks: 2 (p - 1) M + 2 (n - p) M = 2 (n - 1) M, the same as a ring."""
    return 2 * (ranks - 1) * payload_bytes
