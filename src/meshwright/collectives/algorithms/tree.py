"""Binary trees: few steps, few bytes; one tree loads its inner ranks, two trees share the load.

Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
Computing 35 (2009): a rank that is an inner node of one tree is a leaf of the other. The shape of the tree is the one
published for NCCL 2.4 (blog "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019): rank 0 on top, odd
ranks are leaves. Their p = our ``ranks`` n. A rank may receive from both children in one step, as NCCL does; the paper
counts that as two.

The payload is cut into ``pieces`` that follow one another up the tree and, as soon as the root has the sum of one, down.
"""

from __future__ import annotations

import numpy as np

from meshwright.arithmetic import Num, ceil_log2, smaller, where
from meshwright.collectives.algorithms.steplist import Ints, Part, StepList, from_parts

PIECES = 4
"""Pieces each tree's payload is cut into, if not said otherwise: enough to show the pipeline, few enough to read."""


def parents(ranks: int) -> Ints:
    """The parent of each rank: int[ranks], -1 for rank 0.

    A rank's lowest set bit is its height; the parent is one higher: clear the bit, set the next, or only clear it
    where the result would be outside.
    """
    rank = np.arange(ranks)
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    up = np.where(up >= ranks, rank ^ bit, up)
    up[:1] = -1
    return up


def depths(parent: Ints) -> Ints:
    """Edges from each rank to the root: int[ranks]."""
    depth = np.zeros(len(parent), dtype=np.int64)
    at = parent
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    return depth


def second_tree(ranks: int) -> Ints:
    """The place of each rank in the second tree: mirrored for even n, shifted by one for odd n.

    Either way an odd place, a leaf, falls to a rank that is even and thus inner in the first tree.
    """
    rank = np.arange(ranks)
    return ranks - 1 - rank if ranks % 2 == 0 else (rank - 1) % ranks


def all_reduce(ranks: int, pieces: int = PIECES) -> StepList:
    """Reduce up one binary tree, broadcast down the same tree, pipelined."""
    return _along(ranks, [np.arange(ranks)], pieces)


def double_all_reduce(ranks: int, pieces: int = PIECES) -> StepList:
    """Half of the payload over each of two trees, at once."""
    return _along(ranks, [np.arange(ranks), second_tree(ranks)], pieces)


def _along(ranks: int, places: list[Ints], pieces: int) -> StepList:
    parent = parents(ranks)
    depth = depths(parent)
    deepest = int(depth.max())
    steps: list[list[Part]] = [[] for _ in range(2 * deepest + pieces - 1 if ranks > 1 else 0)]
    for tree, place in enumerate(places):
        rank_at = np.argsort(place)
        for level in range(deepest, 0, -1):
            child = np.flatnonzero(depth == level)
            low, high = rank_at[child], rank_at[parent[child]]
            for piece in range(pieces):
                chunk = tree * pieces + piece
                steps[piece + deepest - level].append((low, high, chunk, True))
                steps[piece + deepest + level - 1].append((high, low, chunk, False))
    return from_parts("all_reduce", ranks, len(places) * pieces, steps)


def all_reduce_steps(ranks: Num, pieces: Num = PIECES) -> Num:
    """2 ceil(log2 n) + pieces - 1, for one tree and for two: down to the deepest leaf and up; 0 for n = 1."""
    return where(ranks > 1, 2 * ceil_log2(ranks) + pieces - 1, 0)


def all_reduce_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes the busiest rank sends: M up and M down to each of two children, 3 M (n = 2: M, n = 3: 2 M)."""
    return smaller(ranks - 1, 3) * payload_bytes


def double_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes the busiest rank sends: 3/2 M as an inner node and 1/2 M as a leaf, 2 M (n = 2: M, n = 3: 3/2 M)."""
    return where(ranks > 1, smaller(ranks, 4), 0) * payload_bytes / 2


def total_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Summed over ranks: every edge carries M up and M down, 2 (n - 1) M, the same as a ring."""
    return 2 * (ranks - 1) * payload_bytes
