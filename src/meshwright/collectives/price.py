"""Seconds of one collective on a cluster's tiers: the only price there is (DESIGN principle 3).

A group of n ranks has c_i members in one unit of tier i (c_last = n). A ring over all of them enters tier i with
c_{i-1} lanes, since every GPU of the unit below drives its own adapter: the bandwidth that each rank sees is the smallest
of bandwidth_i x c_{i-1} over the tiers in use. Latency is the launch, and the hops of each tier.

    all_reduce       min(ring: 2 (n-1)/n M, hops 2 (n-1);  tree: 2 M, twice its depth;  in-switch: M)
    all_gather       (n-1)/n M, hops n-1; reduce_scatter alike
    all_to_all       each tier carries its part at the same time: (c_0 - 1)/c_0 M inside, since what goes to another place in its node
                     passes the node's own links wherever it goes (NCCL's PXN); (n - c_{i-1})/n M in tier i further out, since what
                     goes to the spine passes the adapter and the leaf on its way
    send             M in the widest tier

x seconds of bytes at a tier's full bandwidth take x + sqrt(rise x) (spec/network.py); where several tiers are in use, the largest
of each of the two counts. ``rates.py`` has the constants. Sources: Thakur et al. (2005) for ring and halving; NCCL's algorithms
(Sanders, Speck, Traeff 2009 for the double binary tree; S. Jeaugey, "Massively Scale Your Deep Learning Training with NCCL
2.4", 2019, for its shape: a chain in the node, a tree across; K. Kumar, S. Jeaugey, "Doubling all2all Performance with NVIDIA
Collective Communication Library 2.12", 2022, for PXN; NVIDIA, "NVLink SHARP", 2022). M is payload_bytes of DESIGN 4.1.

Contention: all groups of an axis act at once, and a tier's bandwidth is what each GPU gets then (its share of the node's
adapters, of an oversubscribed spine). So eight groups that leave a node through one adapter get an eighth each, and one
group of all eight GPUs gets the whole, by its lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.arithmetic import Num, ceil_div, ceil_log2, larger, smaller, where
from meshwright.collectives.line import NOTHING, Line, either, fastest_s, sent
from meshwright.collectives.rates import rate
from meshwright.spec.cluster import Tier

IN_SWITCH_LEAST_RANKS = 8
"""NCCL prefers the ring on fewer ranks: 4 H200 reach a ring's 348 GB/s and not the switch's 394 (NVIDIA aiconfigurator data, 2025)."""

CHAIN = 8
"""Ranks of a node that NCCL's tree joins as a chain."""


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
    return fastest_s(price_lines(op, group, tiers), payload_bytes)


def price_lines(op: str, group: Group, tiers: tuple[Tier, ...]) -> tuple[Line, ...]:
    """The lines of the algorithms that NCCL chooses among; a call takes what the fastest does. Raises KeyError as above."""
    if op == "recv":
        return (NOTHING,)
    if op == "send":
        return (_send(group, tiers),)
    if op == "all_to_all":
        return (_exchange(group, tiers),)
    if op == "all_reduce":
        return _all_reduce(group, tiers)
    n, path = group.ranks, ring_path(group, tiers, op)
    return (sent(path.launch_s + path.hops_s, (n - 1) / n * path.pace, path.rise_s, path.copy_s / n),)


@dataclass(frozen=True, slots=True)
class Path:
    """A ring through the tiers: launch, latency of n - 1 hops, seconds per byte of the slowest tier and its rise, of a local copy."""

    launch_s: Num
    hops_s: Num
    pace: Num
    rise_s: Num
    copy_s: Num


def hops(group: Group) -> tuple[Num, ...]:
    """How many of the n - 1 hops of a ring lie in each tier, averaged over where in the ring of n edges they begin."""
    n = group.ranks
    found: list[Num] = []
    below: Num = 1
    for members in group.members:
        edges = n / below - where(members < n, n / members, 0.0)
        found.append(edges * ((n - 1) / n) * (members > below))
        below = members
    return tuple(found)


def link_s_per_byte(tier: Tier, bandwidth_bytes_per_s: float, peers: Num) -> Num:
    """Seconds per byte into a tier; with direct links a GPU drives as many as it has peers in the group."""
    if tier.pair_bandwidth_bytes_per_s is None:
        return 1 / bandwidth_bytes_per_s
    share = smaller(1.0, larger(peers, 1) * (tier.pair_bandwidth_bytes_per_s / tier.bandwidth_bytes_per_s))
    return 1 / (bandwidth_bytes_per_s * share)


def ring_path(group: Group, tiers: tuple[Tier, ...], op: str) -> Path:
    """What a ring over the group meets on its way; all zero for a group of one."""
    n = group.ranks
    launch_s: Num = 0.0
    hops_s: Num = 0.0
    pace: Num = 0.0
    steepest: Num = 0.0
    copy_s: Num = 0.0
    below: Num = 1
    for index, (tier, members, count) in enumerate(zip(tiers, group.members, hops(group), strict=True)):
        curve, used = rate(tier, index == 0, op), members > below
        if index == 0:
            launch_s, copy_s = (n > 1) * curve.launch_s, (n > 1) * curve.copy_s_per_byte
        else:
            launch_s = launch_s + used * curve.launch_s
        hops_s = hops_s + count * curve.step_latency_s
        here = used * link_s_per_byte(tier, curve.bandwidth_bytes_per_s, members / below - 1) / below
        steepest = larger(steepest, curve.rise_s * here)
        pace = larger(pace, here)
        below = members
    return Path(launch_s, hops_s, pace, _rise_s(steepest, pace), copy_s)


def _rise_s(steepest: Num, pace: Num) -> Num:
    """The rise that a pace goes with where the largest rise x pace of all tiers is ``steepest``; the pace of a group of one is 0.

    The two may be of different tiers: with the rise of the slowest one, a tier that gets faster could make the whole slower.
    """
    return steepest / where(pace > 0, pace, 1.0)


def _all_reduce(group: Group, tiers: tuple[Tier, ...]) -> tuple[Line, ...]:
    n, path = group.ranks, ring_path(group, tiers, "all_reduce")
    ring = sent(path.launch_s + 2 * path.hops_s, 2 * (n - 1) / n * path.pace, path.rise_s, path.copy_s / n)
    tree = sent(path.launch_s + 2 * _depth_s(group, tiers), 2 * path.pace, path.rise_s)
    tree = either(_measured_across(group, tiers), ring, tree)
    if not tiers[0].in_network_reduction:
        return ring, tree
    switch, inside = in_switch_line(tiers[0]), reduces_in_switch(group)
    return either(inside, switch, ring), either(inside, switch, tree)


def _measured_across(group: Group, tiers: tuple[Tier, ...]) -> Num:
    """Whether the widest tier that the group spans has been measured: its curve is of what NCCL chose, tree or ring."""
    found: Num = False
    below = group.members[0]
    for tier, members in zip(tiers[1:], group.members[1:], strict=True):
        found = where(members > below, any(curve.op == "all_reduce" for curve in tier.curves), found)
        below = members
    return found


def reduces_in_switch(group: Group) -> Num:
    """Whether a switch that can add up an all_reduce of this group is asked to: all in one unit, and enough of them."""
    return (group.members[0] == group.ranks) & (group.ranks >= IN_SWITCH_LEAST_RANKS)


def in_switch_line(tier: Tier) -> Line:
    """An all_reduce that the switch adds up (NVLS): each rank sends its tensor once and gets the sum at the same time."""
    curve = rate(tier, True, "in_switch")
    return sent(curve.launch_s, 1 / curve.bandwidth_bytes_per_s, curve.rise_s)


def _depth_s(group: Group, tiers: tuple[Tier, ...]) -> Num:
    """Latency from a leaf of the tree to its root: along the node's chain, then by halves."""
    chain = smaller(group.members[0], CHAIN)
    steps = chain - 1 + ceil_log2(ceil_div(group.members[0], CHAIN))
    seconds: Num = steps * rate(tiers[0], True, "all_reduce").step_latency_s
    below = group.members[0]
    for tier, members in zip(tiers[1:], group.members[1:], strict=True):
        seconds = seconds + ceil_log2(members // below) * rate(tier, False, "all_reduce").step_latency_s
        below = members
    return seconds


def _exchange(group: Group, tiers: tuple[Tier, ...]) -> Line:
    """Tiers carry their shares at the same time; the messages to n - 1 peers are posted one after the other."""
    n, curve = group.ranks, rate(tiers[0], True, "all_to_all")
    latency_s = (n > 1) * curve.launch_s + (n - 1) * curve.step_latency_s
    below = group.members[0]
    slowest = (below - 1) / below * link_s_per_byte(tiers[0], curve.bandwidth_bytes_per_s, below - 1)
    steepest: Num = curve.rise_s * slowest
    copy_s = (n > 1) * curve.copy_s_per_byte / n
    for tier, members in zip(tiers[1:], group.members[1:], strict=True):
        curve = rate(tier, False, "all_to_all")
        here = (n - below) / n * link_s_per_byte(tier, curve.bandwidth_bytes_per_s, members / below - 1)
        latency_s = latency_s + (members > below) * (curve.launch_s + curve.step_latency_s)
        steepest = larger(steepest, curve.rise_s * here)
        slowest = larger(slowest, here)
        below = members
    return sent(latency_s, slowest, _rise_s(steepest, slowest), copy_s)


def _send(group: Group, tiers: tuple[Tier, ...]) -> Line:
    """Neighbours may sit in different units of the widest tier that the group spans."""
    n = group.ranks
    launch_s = (n > 1) * rate(tiers[0], True, "send").launch_s
    step_s: Num = 0.0
    pace: Num = 0.0
    rise_s: Num = 0.0
    below: Num = 1
    for index, (tier, members) in enumerate(zip(tiers, group.members, strict=True)):
        curve, used = rate(tier, index == 0, "send"), members > below
        step_s = where(used, curve.step_latency_s + (curve.launch_s if index else 0.0), step_s)
        pace = where(used, link_s_per_byte(tier, curve.bandwidth_bytes_per_s, 1), pace)
        rise_s = where(used, curve.rise_s, rise_s)
        below = members
    return sent(launch_s + step_s, pace, rise_s)
