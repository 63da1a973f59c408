"""The structure of a collective's price: its limits, its tiers, and no factor n, no direction and no bits for bytes beside measurements.

How near it comes to measurements is in test_measured_price.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.collectives.fabric import Fabric
from meshwright.collectives.price import Group, collective_s
from meshwright.collectives.rates import LAUNCH_S, rate
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout
from meshwright.spec.load_cluster import resolve_cluster
from nccl_facts import nccl_points

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
CLUSTERS = {"a100": "a100-sxm-80g", "h100": "h100-sxm", "h200": "h200-sxm", "b200": "b200-sxm", "gb200": "gb200-nvl72"}
H100 = resolve_cluster("h100-sxm")
MIB, GIB = 1 << 20, 1 << 30


def over_tp(op: str, payload_bytes: float, ranks: int, cluster: Cluster = H100) -> float:
    """Seconds over ``ranks`` neighbours."""
    return float(Fabric(Layout(tp=ranks), cluster, 8).seconds(op, "tp", payload_bytes))


def over_dp(op: str, payload_bytes: float, inside: int, ranks: int, cluster: Cluster = H100) -> float:
    """Seconds over ``ranks`` that are ``inside`` apart: with inside = 8 one in each node."""
    return float(Fabric(Layout(tp=inside, dp_shard=ranks), cluster, 8).seconds(op, "dp_shard", payload_bytes))


@pytest.mark.parametrize("generation", CLUSTERS)
def test_large_messages_in_a_node_beside_nccl(generation: str) -> None:
    """NCCL 2.27-2.29, 64 MiB and more, 2 to 8 GPUs, point by point. The worst is a step of B200's at 64 MiB (docs/log.md)."""
    points = [p for p in nccl_points(generation) if p.payload_bytes >= 64 * MIB]
    ratios = [over_tp(p.op, p.payload_bytes, p.ranks, resolve_cluster(CLUSTERS[generation])) / p.time_s for p in points]
    assert len(points) >= 24
    assert 0.85 < min(ratios)
    assert max(ratios) < 1.10


@pytest.mark.parametrize("op", OPS)
def test_a_group_of_one_costs_nothing(op: str) -> None:
    assert over_tp(op, GIB, 1) == 0


def test_a_receiver_pays_nothing_of_its_own() -> None:
    assert over_tp("recv", GIB, 8) == 0


def test_an_unknown_collective_is_an_error() -> None:
    with pytest.raises(KeyError):
        over_tp("gossip", GIB, 8)


HUGE = 1e21
"""Bytes beside which launch, hops and the rise to full bandwidth are below one part in a million."""


def reached(op: str, tier: int = 0, cluster: Cluster = H100) -> float:
    """Bytes per second of the largest messages in a tier."""
    return rate(cluster.tiers[tier], tier == 0, op).bandwidth_bytes_per_s


def own_s(op: str, ranks: int, cluster: Cluster = H100) -> float:
    """Seconds for each byte of payload that go to the local copy of a rank's own part."""
    return 0.0 if op == "send" else rate(cluster.tiers[0], True, op).copy_s_per_byte / ranks


@pytest.mark.parametrize(
    ("op", "share"),
    [("all_reduce", 2 * 3 / 4), ("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("all_to_all", 3 / 4), ("broadcast", 3 / 4), ("send", 1)],
)
def test_bytes_on_the_wire_over_the_rate_of_the_link(op: str, share: float) -> None:
    """Four GPUs under one switch: what volume.py counts, at the fraction of 450 GB/s that the op reaches."""
    assert over_tp(op, HUGE, 4) == pytest.approx(HUGE * (share / reached(op) + own_s(op, 4)), rel=1e-6)


def test_a_ring_enters_a_node_by_all_its_adapters() -> None:
    """64 neighbours on 8 nodes: eight adapters of 50 GB/s are slower than the links inside, times 63/64."""
    assert over_tp("all_gather", HUGE, 64) == pytest.approx(
        HUGE * (63 / 64 / min(8 * reached("all_gather", 1), reached("all_gather")) + own_s("all_gather", 64)), rel=1e-6
    )


def test_ranks_in_different_nodes_have_one_adapter_each() -> None:
    assert over_dp("all_gather", HUGE, 8, 8) == pytest.approx(HUGE * (7 / 8 / reached("all_gather", 1) + own_s("all_gather", 8)), rel=1e-6)


def test_an_exchange_sends_over_each_tier_what_leaves_the_unit_below() -> None:
    """16 GPUs on two nodes: 8/16 of each rank's tensor goes to the other node, 7/16 stay inside; both at once."""
    assert over_tp("all_to_all", HUGE, 16) == pytest.approx(HUGE * (8 / 16 / reached("all_to_all", 1) + own_s("all_to_all", 16)), rel=1e-6)


def test_oversubscription_of_the_spine() -> None:
    """128 ranks in 128 nodes of four leaves. A ring crosses the spine once per leaf, where its 32 members have 32 shares of the uplinks:
    only a spine thinner than that slows it. An exchange sends all but one part of each tensor through its adapter, and three quarters
    of it over the rank's share of the spine."""

    def spine_of(oversubscription: float) -> Cluster:
        return replace(H100, tiers=(*H100.tiers[:-1], replace(H100.tiers[-1], oversubscription=oversubscription)))

    def sent_s(op: str, factor: float) -> float:
        return over_dp(op, HUGE, 8, 128, spine_of(factor)) - HUGE * own_s(op, 128)

    ring = [sent_s("all_gather", factor) for factor in (1, 32, 64)]
    assert ring[1] == ring[0]
    assert ring[2] == pytest.approx(2 * ring[0], rel=1e-6)
    exchange = [sent_s("all_to_all", factor) for factor in (1, 2, 4)]
    assert exchange[1] == pytest.approx(exchange[0] * 2 * 96 / 127, rel=1e-6)
    assert exchange[2] == pytest.approx(2 * exchange[1], rel=1e-6)


@pytest.mark.parametrize(("ranks", "links"), [(2, 1), (4, 3), (8, 7)])
def test_gpus_wired_in_pairs_use_the_links_inside_the_group(ranks: int, links: int) -> None:
    """MI300X: 64 GB/s to each of seven others. Two of them have one link, not seven."""
    cluster = resolve_cluster("mi300x")
    share = (ranks - 1) / ranks
    assert over_tp("all_gather", HUGE, ranks, cluster) == pytest.approx(
        share * HUGE / (links / 7 * reached("all_gather", 0, cluster)), rel=1e-6
    )
    assert over_tp("all_to_all", HUGE, ranks, cluster) == pytest.approx(
        share * HUGE / (links / 7 * reached("all_to_all", 0, cluster)), rel=1e-6
    )
    assert over_tp("send", HUGE, ranks, cluster) == pytest.approx(HUGE / (reached("send", 0, cluster) / 7), rel=1e-6)


def test_small_messages_take_the_tree() -> None:
    """1 KiB over 64 nodes: 2 log2 levels, not 2 (n-1) hops."""
    seconds = over_dp("all_reduce", 1024, 8, 32)
    hops = [tier.latency_s for tier in H100.tiers]
    # the rise of 2 KiB over one adapter: sqrt(120 us x 40 ns)
    assert seconds < LAUNCH_S + 2 * 5 * max(hops) + 3e-6
    assert over_dp("all_gather", 1024, 8, 32) > 30 * hops[1]


GROUPS = st.sampled_from([(2, 2, 2), (8, 8, 8), (1, 8, 8), (8, 16, 16), (8, 256, 1024), (1, 1, 64), (4, 4, 12)])


@given(st.sampled_from(OPS), GROUPS, st.integers(1, 1 << 40), st.integers(1, 1 << 40))
def test_more_bytes_never_take_less(op: str, members: tuple[int, ...], a: int, b: int) -> None:
    group = Group(members[-1], members)
    small, large = (collective_s(op, payload, group, H100.tiers) for payload in sorted((a, b)))
    assert 0 < rate(H100.tiers[0], True, op).launch_s <= small <= large


@given(st.sampled_from(OPS), st.integers(1, 1 << 40))
def test_groups_are_priced_alike_alone_and_in_a_column(op: str, payload: int) -> None:
    shapes = [(1, 1, 1), (2, 2, 2), (8, 8, 8), (1, 8, 8), (8, 16, 16), (8, 256, 1024), (1, 1, 64), (4, 4, 12)]
    column = Group(np.array([shape[-1] for shape in shapes]), tuple(np.array(counts) for counts in zip(*shapes, strict=True)))
    for name in ("h100-sxm", "mi300x"):
        tiers = resolve_cluster(name).tiers
        wide = collective_s(op, np.full(len(shapes), payload), column, tiers)
        assert list(wide) == [collective_s(op, payload, Group(shape[-1], shape), tiers) for shape in shapes]
