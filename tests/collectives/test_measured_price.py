"""The price of a collective beside what was measured, and on shared and direct links."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.collectives.price import Group, collective_s, hops
from meshwright.collectives.rates import assumed_rates
from meshwright.collectives.step_price import packed_group
from meshwright.spec.cluster import Cluster, Tier
from meshwright.spec.load_cluster import resolve_cluster
from nccl_facts import busbw_points, nccl_points

MEASURED = {"a100-sxm-80g": "a100", "h100-sxm": "h100", "h200-sxm": "h200", "b200-sxm": "b200", "gb200-nvl72": "gb200"}
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
GIB = 1 << 30


@cache
def cluster_of(name: str) -> Cluster:
    return resolve_cluster(name)


def priced_s(op: str, payload_bytes, ranks: int, cluster: Cluster) -> float:
    return float(collective_s(op, payload_bytes, packed_group(ranks, cluster), cluster.tiers))


def errors(cluster: Cluster, generation: str) -> np.ndarray:
    return np.array([priced_s(p.op, p.payload_bytes, p.ranks, cluster) / p.time_s - 1 for p in nccl_points(generation)])


def without_curves(cluster: Cluster) -> Cluster:
    return replace(cluster, tiers=tuple(replace(tier, network="", curves=()) for tier in cluster.tiers))


def two_tiers(inner: dict | None = None, outer: dict | None = None) -> tuple[Tier, ...]:
    """Eight GPUs in a node, an adapter for each."""
    node = Tier(name="nvlink", size=8, bandwidth_bytes_per_s=450e9, latency_s=1e-6)
    fabric = Tier(name="fabric", size=None, bandwidth_bytes_per_s=50e9, latency_s=3e-6)
    return replace(node, **(inner or {})), replace(fabric, **(outer or {}))


@pytest.mark.parametrize(("name", "generation"), MEASURED.items())
def test_published_times_of_one_node_are_met(name, generation):
    """The bound of the fit, on the price that plans are made with: median within 8 %."""
    assert np.median(np.abs(errors(cluster_of(name), generation))) <= 0.08


@pytest.mark.parametrize(("name", "generation"), MEASURED.items())
def test_without_curves_bandwidth_and_latency_come_within_a_fifth(name, generation):
    """Made-up constants are the middle of five generations: on each of them the median is within 20 % (worst: GB200 19 %)."""
    assert np.median(np.abs(errors(without_curves(cluster_of(name)), generation))) <= 0.20


@pytest.mark.parametrize(("gpu", "name", "prefix"), [("B200 SXM", "b200-sxm", "arsweep"), ("H200 SXM", "h200-sxm", "armisc")])
def test_four_nodes_are_met_where_bytes_decide(gpu, name, prefix):
    """Within 10 % from 512 MiB on; the slowest of the source's points was a forced NVLSTree, which NCCL does not choose."""
    points = [p for p in busbw_points(prefix, gpu, 32) if p.payload_bytes >= GIB // 2]
    found = sorted(priced_s("all_reduce", p.payload_bytes, 32, cluster_of(name)) / p.time_s - 1 for p in points)
    kept = found[1:] if prefix == "armisc" else found
    assert len(kept) >= 2 and max(map(abs, kept)) < 0.10


def test_the_two_halves_of_an_all_reduce_take_longer_where_the_switch_reduces():
    """8 H200, 512 MiB: 1,393 + 1,395 us against 2,040, +37 % (NVIDIA aiconfigurator data, NCCL 2.29.2)."""
    h200 = cluster_of("h200-sxm")
    halves = priced_s("reduce_scatter", GIB // 2, 8, h200) + priced_s("all_gather", GIB // 2, 8, h200)
    # each of the three is within the fits' 3 to 4 %
    assert halves / priced_s("all_reduce", GIB // 2, 8, h200) - 1 == pytest.approx(0.37, abs=0.06)


def test_direct_links_give_a_pair_one_link():
    """MI300X, 4 GiB: 47.7 GB/s of bus bandwidth on 2 GPUs, 312.9 on 8 (S. Bekman, Machine Learning Engineering, 2026)."""
    mi300x = cluster_of("mi300x")
    for ranks, measured in ((2, 47.7e9), (8, 312.9e9)):
        reached = 2 * (ranks - 1) / ranks * 4 * GIB / priced_s("all_reduce", 4 * GIB, ranks, mi300x)
        # one made-up share of the links for every vendor, 0.78; measured here 0.75 and 0.70
        assert reached == pytest.approx(measured, rel=0.10)


def test_one_adapter_for_eight_gpus_gives_eight_groups_an_eighth_each():
    fast_node = {"bandwidth_bytes_per_s": 900e9}  # never the slowest here
    many, one = two_tiers(fast_node), two_tiers(fast_node, {"bandwidth_bytes_per_s": 50e9 / 8})
    single, whole = Group(4, (1, 4)), Group(32, (8, 32))
    for group in (single, whole):
        slow, fast = (collective_s("all_gather", 64 * GIB, group, tiers) for tiers in (one, many))
        # the rise to full bandwidth is the same time for both; at 64 GiB it is below 3 % of the fast one
        assert slow / fast == pytest.approx(8, rel=0.04)
    # four nodes of eight groups with a rank in each, or of one group with eight: the same bytes leave the node, M/4 x 8 x 3
    # and 8 M x 31/32
    apart, together = (collective_s("all_gather", M, g, many) for M, g in ((8 * GIB, single), (64 * GIB, whole)))
    assert together / apart == pytest.approx((31 / 32 * 64 / 8) / (3 / 4 * 8), rel=0.01)


def test_rails_cost_the_node_its_own_links_and_only_where_they_are_slow():
    """What goes to another place of another node is first handed to the neighbour on that rail: 7/8 of all bytes pass NVLink."""
    group = Group(64, (8, 64))
    fast, slow = two_tiers(), two_tiers(inner={"bandwidth_bytes_per_s": 40e9})
    across = 56 / 64 * GIB / (50e9 * 0.80)
    assert collective_s("all_to_all", GIB, group, fast) == pytest.approx(across, rel=0.15)  # and the rise
    inside = 7 / 8 * GIB / (40e9 * 0.78)
    assert collective_s("all_to_all", GIB, group, slow) == pytest.approx(inside, rel=0.15)


@given(
    op=st.sampled_from(OPS), name=st.sampled_from([*MEASURED, "mi300x", "a100-pcie", "h800-sxm"]), log_ranks=st.integers(1, 10),
    log_inner=st.integers(0, 6), payload_bytes=st.integers(1, 1 << 40),
)  # fmt: skip
def test_more_bytes_never_take_less_time_and_numbers_agree_with_arrays(op, name, log_ranks, log_inner, payload_bytes):
    cluster, n = cluster_of(name), 1 << log_ranks
    members = tuple(min(n, 1 << log_inner << 3 * i) for i in range(len(cluster.tiers) - 1))
    group = Group(n, (*members, n))
    alone = collective_s(op, payload_bytes, group, cluster.tiers)
    column = Group(np.array([n, 1]), tuple(np.array([m, 1]) for m in group.members))
    wide = collective_s(op, np.array([payload_bytes, payload_bytes]), column, cluster.tiers)
    assert alone > 0 and (wide[0], wide[1]) == (alone, 0.0)
    assert collective_s(op, 2 * payload_bytes, group, cluster.tiers) > alone


@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 4))
def test_a_ring_has_n_minus_one_hops(inner, middle, outer):
    members = (inner, inner << middle, inner << middle << outer)
    found = hops(Group(members[-1], members))
    assert sum(found) == pytest.approx(members[-1] - 1, rel=1e-12)  # products of a few rounded quotients
    assert all(count >= 0 for count in found)


def test_tiers_that_nobody_measured_are_named_as_assumed():
    def tiers_of(name: str, gpus: int) -> list[str]:
        return [words.split(" in tier ")[1].split()[0] for words in assumed_rates(cluster_of(name).tiers, gpus)]

    assert tiers_of("h100-sxm", 8) == []
    assert tiers_of("h100-sxm", 9) == tiers_of("h100-sxm", 256) == ["leaf"]
    assert tiers_of("h100-sxm", 257) == ["leaf", "spine"]
    assert tiers_of("h800-sxm", 8) == ["nvlink"]
    assert tiers_of("gb200-nvl72", 64) == [] and tiers_of("h800-sxm", 1) == []
