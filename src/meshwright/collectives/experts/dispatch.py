"""How long a dispatch or a combine takes: the busiest adapter of the slowest tier sets it."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.collectives.experts.traffic import Traffic
from meshwright.collectives.price import Group, link_s_per_byte
from meshwright.collectives.rates import rate
from meshwright.spec.cluster import Tier
from meshwright.spec.network import Curve

CHUNKS = "send"
"""A fused kernel's copies between nodes are long messages to a few peers on its own rail, priced as sends."""


def dispatch_s(traffic: Traffic, token_bytes: float, group: Group, tiers: Sequence[Tier]) -> float:
    """Seconds of one call in which each copy of a token has ``token_bytes``.

    Tiers work at the same time in flat and fused ways, one after the other in the hierarchical one. With balanced choices the flat
    way is the price of an all_to_all.
    """
    if group.ranks == 1:
        return 0.0
    seconds: list[float] = []
    latency_s = 0.0
    below = 1
    for index, (tier, members, copies) in enumerate(zip(tiers, group.members, traffic.busiest, strict=True)):
        curve = rate(tier, index == 0, "all_to_all" if index == 0 or traffic.way != "fused" else CHUNKS)
        peers = _peers(traffic.way, group, index, below)
        if index == 0:
            latency_s += curve.launch_s + peers * curve.step_latency_s
        elif members > below:
            latency_s += curve.launch_s + curve.step_latency_s
        seconds.append(_carry_s(tier, curve, copies * token_bytes, members / below - 1))
        below = members
    if traffic.way != "hierarchical":
        return latency_s + max(seconds)
    again = rate(tiers[0], True, "all_to_all").launch_s if group.members[0] < group.ranks else 0.0
    return latency_s + again + seconds[0] + max(seconds[1:], default=0.0)


def _peers(way: str, group: Group, index: int, below: int) -> int:
    """Messages that a rank posts one after the other: to every rank, or to its node and then to its rail."""
    inner = int(group.members[0])
    return int(group.ranks) - 1 if way == "flat" else inner - 1 + int(group.ranks) // inner - 1


def _carry_s(tier: Tier, curve: Curve, wire_bytes: float, peers: float) -> float:
    share = link_s_per_byte(tier, curve.bandwidth_bytes_per_s, peers) * curve.bandwidth_bytes_per_s
    return float(curve.time_s(0, wire_bytes * share))
