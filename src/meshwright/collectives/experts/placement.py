"""Where experts go: those that serve the same tokens on one node, heavy and light ones together on a rank; with bounds.

Nodes first: split E experts into equal parts so that the co-activation inside the parts is largest. That is balanced graph partitioning,
which is NP-hard; swaps of pairs (Kernighan and Lin, "An efficient heuristic procedure for partitioning graphs", Bell System
Technical Journal 49 (1970)) find a good split, and an upper bound says how good it must be. Then ranks inside each node: the heaviest
expert first, onto the lightest rank with room (Graham, "Bounds on multiprocessing timing anomalies", 1969).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.collectives.experts.routing import Routing

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STARTS = 6
"""Splits that swapping starts from: the experts' own order, one that balances loads, and variations of that."""

LOAD_SLACK = 0.10
"""How far above the average a node's load may go for the sake of co-activation."""


@dataclass(frozen=True)
class Placement:
    """A place for each expert.

    Attributes:
        rank_of: int[E], the rank in the expert group; E/ranks experts each, neighbours in one node.
        inside: share of the co-activation that lies within nodes; inside_bound: no equal split has more.
        heaviest: load of the busiest rank over the average; heaviest_bound: no placement has less.
    """

    rank_of: Ints
    inside: float
    inside_bound: float
    heaviest: float
    heaviest_bound: float


def co_activation(routing: Routing) -> Floats:
    """float[E, E]: how many tokens choose both experts; 0 on the diagonal."""
    k = routing.chosen.shape[-1]
    flat = routing.chosen.reshape(-1, k)
    together = np.zeros((routing.num_experts, routing.num_experts))
    for first in range(k):
        for second in range(first + 1, k):
            np.add.at(together, (flat[:, first], flat[:, second]), 1.0)
    return together + together.T


def place(together: Floats, loads: Floats, nodes: int, ranks: int, load_slack: float = LOAD_SLACK, seed: int = 0) -> Placement:
    """Place experts on ``nodes`` nodes of ``ranks`` / ``nodes`` ranks.

    Args:
        together: float[E, E], symmetric and not negative; E divisible by ``ranks``.
        loads: float[E], shares of all choices.
        load_slack: no node gets above (1 + load_slack) times the average, unless balancing alone leaves one there.
    """
    experts = len(loads)
    weights = (together + together.T) / 2
    np.fill_diagonal(weights, 0.0)
    rng = np.random.default_rng(seed)
    starts = [np.arange(experts) // (experts // nodes), _balanced(loads, nodes)]
    starts += [_balanced(loads * rng.uniform(0.7, 1.3, experts), nodes) for _ in range(STARTS - len(starts))]
    ceiling = max((1 + load_slack) * loads.sum() / nodes, np.bincount(starts[1], loads).max()) * (1 + 1e-12)
    best, most = starts[1], -1.0
    for start in starts:
        node_of = _swapped(weights, loads, start, nodes, ceiling)
        inside = _inside(weights, node_of)
        if inside > most and np.bincount(node_of, loads).max() <= ceiling:
            best, most = node_of, inside
    total = weights.sum() / 2
    rank_of = _ranks_in_nodes(loads, best, nodes, ranks)
    heaviest = np.bincount(rank_of, loads, ranks).max()
    share = most / total if total > 0 else 1.0
    bound = min(inside_bound(weights, nodes) / total, 1.0) if total > 0 else 1.0
    return Placement(rank_of, share, bound, float(heaviest * ranks / loads.sum()), load_bound(loads, ranks) * ranks / float(loads.sum()))


def _inside(weights: Floats, node_of: Ints) -> float:
    return float(weights[node_of[:, None] == node_of[None, :]].sum() / 2)


def _swapped(weights: Floats, loads: Floats, node_of: Ints, nodes: int, ceiling: float) -> Ints:
    """Swap the pair that gains most, until none does; no node's load rises above ``ceiling``."""
    node_of = node_of.copy()
    experts = len(loads)
    belongs = np.zeros((experts, nodes))
    belongs[np.arange(experts), node_of] = 1
    for _ in range(experts * experts):
        to_node = weights @ belongs  # weight of each expert with each node
        own = to_node[np.arange(experts), node_of]
        move = to_node[:, node_of] - own[:, None]  # [a, b]: a goes to b's node
        gain = move + move.T - 2 * weights
        node_load = np.bincount(node_of, loads, nodes)
        after = node_load[node_of][:, None] + loads[None, :] - loads[:, None]  # of a's node when b comes for a
        allowed = (after <= np.maximum(ceiling, node_load[node_of][:, None])) & (node_of[:, None] != node_of[None, :])
        gain = np.where(allowed & allowed.T, gain, -np.inf)
        a, b = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[a, b] <= 1e-9 * weights.sum():
            return node_of
        node_of[a], node_of[b] = node_of[b], node_of[a]
        belongs[[a, b]] = belongs[[b, a]]
    return node_of


def _ranks_in_nodes(loads: Floats, node_of: Ints, nodes: int, ranks: int) -> Ints:
    rank_of = np.zeros(len(loads), dtype=np.int64)
    for node in range(nodes):
        mine = np.flatnonzero(node_of == node)
        rank_of[mine] = node * (ranks // nodes) + _balanced(loads[mine], ranks // nodes)
    return rank_of


def _balanced(loads: Floats, bins: int) -> Ints:
    """int[len(loads)]: equal numbers in each bin, the heaviest first, onto the lightest bin with room."""
    room = len(loads) // bins
    carried, count = np.zeros(bins), np.zeros(bins, dtype=np.int64)
    bin_of = np.zeros(len(loads), dtype=np.int64)
    for item in np.argsort(-loads, kind="stable"):
        lightest = int(np.where(count < room, carried, np.inf).argmin())
        carried[lightest] += loads[item]
        count[lightest] += 1
        bin_of[item] = lightest
    return bin_of


def inside_bound(weights: Floats, nodes: int) -> float:
    """Upper bound on the weight inside ``nodes`` equal parts of s experts: the smaller of two.

    - Each expert has at most its s - 1 heaviest neighbours beside it.
    - Donath and Hoffman, "Lower bounds for the partitioning of graphs", IBM J. Res. Dev. 17 (1973): s/2 times the sum of the
      ``nodes`` largest eigenvalues of W + diag(d), for every d that sums to 0; here d = 0, and d that makes all rows sum alike.
    """
    experts = len(weights)
    size = experts // nodes
    rows = np.sort(weights, axis=1)[:, experts - size + 1 :].sum() / 2
    degrees = weights.sum(axis=1)
    found = [float(rows)]
    for diagonal in (np.zeros(experts), degrees.mean() - degrees):
        largest = np.linalg.eigvalsh(weights + np.diag(diagonal))[-nodes:]
        found.append(float(size / 2 * largest.sum()))
    return min(found)


def load_bound(loads: Floats, ranks: int) -> float:
    """Lower bound on the busiest rank's load: the average, or the heaviest expert with the lightest that fill its rank."""
    per_rank = len(loads) // ranks
    ordered = np.sort(loads)
    return float(max(loads.sum() / ranks, ordered[-1] + ordered[: per_rank - 1].sum()))
