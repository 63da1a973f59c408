"""Two levels: what can stay inside the node does, and the network between nodes carries as little as possible.

Letters: l ranks of a node take part (``ranks_per_node``), g nodes, n = g l; rank = node * l + local. M = ``payload_bytes``.
Sources: all_reduce: Jia et al., "Highly scalable deep learning training system with mixed-precision", arXiv:1807.11205
(2018), section 3.3 (their k = our l), with a reduce_scatter and an all_gather in the node instead of reduce and
broadcast, as in Ueno and Yokota, "Exhaustive study of hierarchical allreduce patterns", CCGRID (2019).
all_to_all by node: DeepSpeed-MoE (Rajbhandari et al., arXiv:2201.05596, section 5.2), Tutel (Hwang et al., arXiv:2206.03382,
section 4.3: 2DH). By rail: NVIDIA's PXN (blog "Doubling all2all performance with NCCL 2.12", 2022).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.arithmetic import Num, ceil_div, smaller
from meshwright.collectives.algorithms import ring
from meshwright.collectives.algorithms.steplist import Ints, Part, StepList, from_parts, one_after_the_other, placed


def nodes_of(ranks: int, ranks_per_node: int) -> int:
    """Nodes that a group fills. Raises ValueError unless all are full."""
    if ranks_per_node < 1 or ranks % ranks_per_node:
        raise ValueError(f"{ranks} ranks do not fill nodes of {ranks_per_node}")
    return ranks // ranks_per_node


def all_reduce(ranks: int, ranks_per_node: int) -> StepList:
    """reduce_scatter in the node, all_reduce of each shard across the nodes, all_gather in the node; rings throughout."""
    local, nodes = ranks_per_node, nodes_of(ranks, ranks_per_node)
    grid = np.arange(ranks).reshape(nodes, local)
    shard = np.arange(ranks).reshape(local, nodes)
    in_node = np.broadcast_to(shard, (nodes, local, nodes))
    scatter = placed(ring.reduce_scatter(local), ranks, ranks, grid, in_node)
    across = placed(ring.all_reduce(nodes), ranks, ranks, grid.T, shard[:, :, None])
    gather = placed(ring.all_gather(local), ranks, ranks, grid, in_node)
    return one_after_the_other("all_reduce", scatter, across, gather)


def all_reduce_steps(ranks: Num, ranks_per_node: Num) -> Num:
    """2 (l - 1) in the node and 2 (g - 1) across."""
    return 2 * (ranks_per_node - 1) + 2 * (ranks // ranks_per_node - 1)


def all_reduce_wire_bytes(payload_bytes: Num, ranks: Num, ranks_per_node: Num) -> Num:
    """Bytes each rank sends: 2 (l - 1)/l M in the node and 2 (g - 1)/g M/l across, together a ring's 2 (n - 1)/n M."""
    return 2 * (ranks_per_node - 1) / ranks_per_node * payload_bytes + all_reduce_across_bytes(payload_bytes, ranks, ranks_per_node)


def all_reduce_across_bytes(payload_bytes: Num, ranks: Num, ranks_per_node: Num) -> Num:
    """Bytes each rank sends to another node: 2 (g - 1)/g M/l; a flat ring sends 2 (n - 1)/n M, from one rank of the node."""
    nodes = ranks // ranks_per_node
    return 2 * (nodes - 1) / nodes * payload_bytes / ranks_per_node


def rail_all_to_all(ranks: int, ranks_per_node: int) -> StepList:
    """In the node to the rank with the destination's local number, then across along that rail: pairwise both times.

    n messages per rank become l + g; each message across carries l blocks.
    """
    local, nodes = ranks_per_node, nodes_of(ranks, ranks_per_node)
    a, i, b, j = np.ogrid[:nodes, :local, :nodes, :local]
    chunk = (a * local + i) * ranks + b * local + j
    steps: list[list[Part]] = []
    for s in range(1, local):
        moves = (j - i) % local == s
        steps.append([_where(moves, a * local + i, a * local + j, chunk)])
    for s in range(1, nodes):
        moves = (b - a) % nodes == s
        steps.append([_where(moves, a * local + j, b * local + j, chunk)])
    return from_parts("all_to_all", ranks, ranks * ranks, steps)


def all_to_all(ranks: int, ranks_per_node: int) -> StepList:
    """In the node to a carrier, across as one message for each pair of nodes, in the node to the destination.

    All blocks for the node s on (s = 1 .. g - 1) meet at local rank (s - 1) mod l and land at the same local rank there;
    blocks for the own node go straight.
    """
    local, nodes = ranks_per_node, nodes_of(ranks, ranks_per_node)
    a, i, b, j = np.ogrid[:nodes, :local, :nodes, :local]
    chunk = (a * local + i) * ranks + b * local + j
    away = (b - a) % nodes
    carrier = np.where(away > 0, (away - 1) % local, j)
    steps: list[list[Part]] = []
    for s in range(1, local):
        steps.append([_where((carrier - i) % local == s, a * local + i, a * local + carrier, chunk)])
    for s in range(-(-(nodes - 1) // local)):
        steps.append([_where((away > 0) & ((away - 1) // local == s), a * local + carrier, b * local + carrier, chunk)])
    if nodes > 1:
        for s in range(1, local):
            steps.append([_where((away > 0) & ((j - carrier) % local == s), b * local + carrier, b * local + j, chunk)])
    return from_parts("all_to_all", ranks, ranks * ranks, steps)


def _where(moves: NDArray[np.bool_], sender: Ints, receiver: Ints, chunk: Ints) -> Part:
    chosen, senders, receivers = np.broadcast_arrays(moves & (chunk >= 0), sender, receiver)[:3]
    return senders[chosen], receivers[chosen], chunk[chosen], False


def rail_steps(ranks: Num, ranks_per_node: Num) -> Num:
    """l - 1 in the node and g - 1 across."""
    return ranks_per_node - 1 + ranks // ranks_per_node - 1


def rail_wire_bytes(payload_bytes: Num, ranks: Num, ranks_per_node: Num) -> Num:
    """Bytes each rank sends: (l - 1)/l M in the node, (g - 1)/g M across."""
    return (ranks_per_node - 1) / ranks_per_node * payload_bytes + rail_across_bytes(payload_bytes, ranks, ranks_per_node)


def rail_across_bytes(payload_bytes: Num, ranks: Num, ranks_per_node: Num) -> Num:
    """Bytes each rank sends to other nodes: (g - 1)/g M, the same as flat; only the number of messages falls."""
    nodes = ranks // ranks_per_node
    return (nodes - 1) / nodes * payload_bytes


def all_to_all_steps(ranks: Num, ranks_per_node: Num) -> Num:
    """l - 1 to the carriers, ceil((g - 1)/l) across, l - 1 from the carriers (none on a single node)."""
    nodes = ranks // ranks_per_node
    ways = 1 + smaller(nodes - 1, 1)
    return ways * (ranks_per_node - 1) + ceil_div(nodes - 1, ranks_per_node)


def all_to_all_wire_bytes(payload_bytes: Num, ranks: Num, ranks_per_node: Num) -> Num:
    """Bytes the busiest rank sends; it carries q = ceil((g - 1)/l) node pairs of l^2 blocks.

    In blocks of M/n: l - 1 to its own node, (g - 1 - q) l to other carriers, q l^2 across, and of what it received
    q l (l - 1) onwards.
    """
    local, nodes = ranks_per_node, ranks // ranks_per_node
    q = ceil_div(nodes - 1, local)
    blocks = local - 1 + (nodes - 1 - q) * local + q * local**2 + q * local * (local - 1)
    return blocks / ranks * payload_bytes


def all_to_all_total_bytes(payload_bytes: Num, ranks: Num, ranks_per_node: Num) -> Num:
    """Summed over ranks: per node l (l - 1) blocks stay, and each of (g - 1) node pairs moves l^2 - l, l^2 and l^2 - l."""
    local, nodes = ranks_per_node, ranks // ranks_per_node
    blocks = nodes * (local * (local - 1) + (nodes - 1) * (3 * local**2 - 2 * local))
    return blocks / ranks * payload_bytes
