"""Seconds of one collective on a cluster's tiers: the only price there is (DESIGN principle 3).

A group of n ranks has c_i members in one unit of tier i (c_last = n). A ring over all of them enters tier i with
c_{i-1} lanes, since every GPU of the unit below drives its own adapter: the bandwidth that each rank sees is the smallest
of bandwidth_i x c_{i-1} over the tiers in use. Latency is a start-up per call and the hops of each tier.

    all_reduce       min(ring: 2 (n-1)/n M / bus, hops 2 (n-1);  tree: 2 M / bus, hops 2 log2 n;  in-switch: M / bandwidth)
    all_gather       (n-1)/n M / bus, hops n-1; reduce_scatter alike
    all_to_all       each tier carries what leaves the unit below: max over tiers of (c_i - c_{i-1})/n M / bandwidth_i
    send             M / bandwidth of the widest tier

Where GPUs are wired in pairs (xGMI, the first NVLink), bandwidth_i is that of the links to the other members of the group.

Sources: Thakur et al. (2005) for ring and halving; NCCL's algorithms (Sanders, Speck, Traeff 2009 for the double binary
tree; NVIDIA, "NVLink SHARP", 2022). M is payload_bytes of DESIGN 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.arithmetic import Num, ceil_log2, larger, smaller, where
from meshwright.spec.cluster import Tier

START_S = 5e-6
"""Start-up of one call: nccl-tests of 512 B on 2 GPUs take 5-6 us (NVIDIA aiconfigurator data, 2025)."""

INNER = {"all_reduce": 0.75, "all_gather": 0.73, "reduce_scatter": 0.73, "all_to_all": 0.67, "broadcast": 0.73, "send": 0.80}
"""Fraction of the NVLink rate that large messages reach: 8 GPUs at 512 MiB, A100 0.74, 0.68, 0.71, 0.68; H200 0.77 (ring, 4
GPUs), 0.75, 0.75, 0.69; B200 0.68, 0.69, 0.68, 0.63 (NVIDIA aiconfigurator data, NCCL 2.29, 2025)."""

OUTER = {"all_reduce": 0.85, "all_gather": 0.85, "reduce_scatter": 0.85, "all_to_all": 0.70, "broadcast": 0.85, "send": 0.85}
"""Fraction of the adapter's line rate across nodes; hardly any public point (docs/log.md)."""

IN_SWITCH = 0.585
"""Payload rate of an in-switch all_reduce over the link rate: 263 of 450 GB/s (8 H200, 512 MiB, same source)."""

IN_SWITCH_LEAST_RANKS = 8
"""NCCL prefers the ring on fewer ranks: 4 H200 reach a ring's 348 GB/s and not the switch's 394 (same source)."""


@dataclass(frozen=True, slots=True)
class Group:
    """The shape of one axis's groups on the tiers: its size, and its members in one unit of each tier."""

    ranks: Num
    members: tuple[Num, ...]


def collective_s(op: str, payload_bytes: Num, group: Group, tiers: tuple[Tier, ...]) -> Num:
    """Seconds of one call; 0 for a group of one.

    Raises:
        KeyError: no such collective.
    """
    n, M = group.ranks, payload_bytes
    if op == "recv":
        return 0.0 * n
    if op == "send":
        seconds = START_S + _widest(group, tiers, op, M)
    elif op == "all_to_all":
        seconds = START_S + _exchange(group, tiers, M)
    elif op == "all_reduce":
        seconds = START_S + _all_reduce(group, tiers, M)
    else:
        pace, hops_s = _ring(group, tiers, op)
        seconds = START_S + (n - 1) / n * M * pace + hops_s
    return where(n > 1, seconds, 0.0)


def _rate(tier: Tier, index: int, op: str, peers: Num) -> Num:
    """Bytes per second that one rank gets from a tier when all send, each to ``peers`` others: over a switch the whole rate,
    over links between pairs no more than they carry together."""
    bandwidth: Num = tier.loaded_bandwidth_bytes_per_s
    if tier.pair_bandwidth_bytes_per_s is not None:
        bandwidth = smaller(bandwidth, larger(peers, 1) * tier.pair_bandwidth_bytes_per_s)
    return bandwidth * (INNER if index == 0 else OUTER)[op]


def _ring(group: Group, tiers: tuple[Tier, ...], op: str) -> tuple[Num, Num]:
    """(seconds per byte of the slowest tier in use, seconds of latency of n - 1 hops)."""
    pace: Num = 0.0
    hops_s: Num = 0.0
    below: Num = 1
    n = group.ranks
    for index, (tier, members) in enumerate(zip(tiers, group.members, strict=True)):
        used = members > below
        pace = larger(pace, used / (_rate(tier, index, op, members // below - 1) * below))
        hops_s = hops_s + (n / below - n / members) * tier.latency_s
        below = members
    return pace, hops_s * ((n - 1) / n)


def _all_reduce(group: Group, tiers: tuple[Tier, ...], M: Num) -> Num:
    n = group.ranks
    pace, hops_s = _ring(group, tiers, "all_reduce")
    ring = 2 * (n - 1) / n * M * pace + 2 * hops_s
    tree = 2 * M * pace + 2 * _depth_s(group, tiers)
    best = smaller(ring, tree)
    if tiers[0].in_network_reduction:
        inside = (group.members[0] == n) & (n >= IN_SWITCH_LEAST_RANKS)
        switch = M / (tiers[0].loaded_bandwidth_bytes_per_s * IN_SWITCH) + 4 * tiers[0].latency_s
        best = where(inside, smaller(best, switch), best)
    return best


def _depth_s(group: Group, tiers: tuple[Tier, ...]) -> Num:
    """Latency from a leaf of the tree to its root."""
    seconds: Num = 0.0
    below: Num = 1
    for tier, members in zip(tiers, group.members, strict=True):
        seconds = seconds + ceil_log2(members // below) * tier.latency_s
        below = members
    return seconds


def _exchange(group: Group, tiers: tuple[Tier, ...], M: Num) -> Num:
    """Tiers carry their shares at the same time; the messages to n - 1 peers are posted together."""
    slowest: Num = 0.0
    latency_s: Num = 0.0
    below: Num = 1
    n = group.ranks
    for index, (tier, members) in enumerate(zip(tiers, group.members, strict=True)):
        slowest = larger(slowest, (members - below) / n * M / _rate(tier, index, "all_to_all", members // below - 1))
        latency_s = latency_s + (members > below) * tier.latency_s
        below = members
    return slowest + latency_s


def _widest(group: Group, tiers: tuple[Tier, ...], op: str, M: Num) -> Num:
    """Neighbours may sit in different units of the widest tier that the group spans."""
    seconds: Num = 0.0
    below: Num = 1
    for index, (tier, members) in enumerate(zip(tiers, group.members, strict=True)):
        seconds = where(members > below, M / _rate(tier, index, op, 1) + tier.latency_s, seconds)
        below = members
    return seconds
