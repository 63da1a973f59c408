"""Times read off step lists agree with the planner's price where both price the same thing, and crossovers are exact."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.collectives.algorithms import OPS, algorithms
from meshwright.collectives.line import Line
from meshwright.collectives.price import IN_SWITCH_LEAST_RANKS, collective_s, price_lines
from meshwright.collectives.rates import rate
from meshwright.collectives.step_price import NamedLine, best_line, crossovers, in_switch, lines, packed_group
from meshwright.spec.load_cluster import resolve_cluster

GIB = float(1 << 30)
H100 = resolve_cluster("h100-sxm")
A100 = resolve_cluster("a100-sxm-80g")


def only_line(op: str, name: str, ranks: int, cluster=H100) -> NamedLine:
    per_node = packed_group(ranks, cluster).members[0]
    (found,) = lines(next(a for a in algorithms(op, ranks, per_node) if a.name == name), ranks, cluster)
    return found


def priced_s(op: str, payload_bytes: float, ranks: int, cluster=H100) -> float:
    return float(collective_s(op, payload_bytes, packed_group(ranks, cluster), cluster.tiers))


@pytest.mark.parametrize("cluster", [H100, A100], ids=lambda c: c.name)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize(("op", "name"), [("all_gather", "ring"), ("reduce_scatter", "ring"), ("all_to_all", "direct")])
def test_seconds_per_byte_and_root_are_the_planners(op, name, ranks, cluster):
    (priced,) = price_lines(op, packed_group(ranks, cluster), cluster.tiers)
    found = only_line(op, name, ranks, cluster).line
    # both sides are a handful of products
    assert found.s_per_byte == pytest.approx(float(priced.s_per_byte), rel=1e-12)
    assert found.s_per_root_byte == pytest.approx(float(priced.s_per_root_byte), rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64, 128])
def test_latency_of_a_ring_is_the_planners_within_a_hop(ranks):
    """The price averages over where the ring starts, the step list has one start: at most one hop of each tier apart."""
    apart = abs(only_line("all_gather", "ring", ranks).latency_s - priced_s("all_gather", 0.0, ranks))
    assert apart <= sum(tier.latency_s for tier in H100.tiers)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_latency_inside_a_node_is_one_hop_per_step(ranks):
    for op in OPS:
        curve = rate(H100.tiers[0], True, op)
        for algorithm in algorithms(op, ranks):
            for found in lines(algorithm, ranks, H100):
                hops_s = curve.launch_s + found.steps * curve.step_latency_s
                if algorithm.name == "naive":
                    # the next rank's message is already under way: a hop for the first, a gap for each after it
                    assert found.latency_s <= hops_s * (1 + 1e-12)
                else:
                    assert found.latency_s == pytest.approx(hops_s, rel=1e-12), algorithm.name


def test_in_switch_is_the_planners_price_to_the_last_bit():
    found = in_switch(8, H100)
    assert found is not None
    assert found.time_s(GIB) == priced_s("all_reduce", GIB, 8)
    assert in_switch(IN_SWITCH_LEAST_RANKS - 1, H100) is None
    assert in_switch(16, H100) is None
    assert in_switch(8, A100) is None


@pytest.mark.parametrize("ranks", [2, 5, 8, 16, 64])
def test_planner_never_pays_more_than_the_ring_nor_less_than_half_the_fastest(ranks):
    """The price takes the best of ring, tree and switch; a floor of half guards against a slip of a factor."""
    known = [line for a in algorithms("all_reduce", ranks) for line in lines(a, ranks, A100)]
    ring = only_line("all_reduce", "ring", ranks, A100)
    for payload in (1e6, 1e8, 1e10):
        paid = priced_s("all_reduce", payload, ranks, A100)
        assert paid <= ring.time_s(payload) + sum(tier.latency_s for tier in A100.tiers)
        assert paid >= 0.5 * best_line(known, payload).time_s(payload)


def test_one_root_uses_one_adapter_of_its_node():
    """Across two nodes the naive all_reduce is eight times as slow per byte as it would be with all eight adapters."""
    naive = only_line("all_reduce", "naive", 16).line.s_per_byte
    nic = H100.tiers[1].loaded_bandwidth_bytes_per_s
    assert naive > 2 * 8 / nic  # eight whole tensors in, eight out, through one adapter


def test_hierarchical_all_reduce_loads_each_tier_as_its_formula_says():
    found = only_line("all_reduce", "hierarchical", 64)
    curves = [rate(tier, index == 0, "all_reduce") for index, tier in enumerate(H100.tiers[:2])]
    inside, across = 2 * 7 / 8, 2 * 7 / 8 / 8  # bytes of a rank per byte of payload: in its node, and with its seven partners
    expected = inside / curves[0].bandwidth_bytes_per_s + across / curves[1].bandwidth_bytes_per_s + curves[0].copy_s_per_byte / 64
    assert found.line.s_per_byte == pytest.approx(expected, rel=1e-9)


def test_one_rank_takes_no_time():
    for op in OPS:
        for algorithm in algorithms(op, 1):
            assert {found.time_s(GIB) for found in lines(algorithm, 1, H100)} == {0.0}


SIZES = (1e3, 1e10)


@given(st.lists(st.tuples(st.floats(0, 1e-3), st.floats(1e-12, 1e-8), st.floats(0, 1e-6)), min_size=1, max_size=8, unique=True))
def test_crossovers_are_where_the_fastest_changes(constants):
    found = [NamedLine(f"line{i}", 1, Line(*three)) for i, three in enumerate(constants)]
    changes = crossovers(found, *SIZES)
    bounds = [SIZES[0], *(change.payload_bytes for change in changes), SIZES[1]]
    assert bounds == sorted(bounds)
    assert all(before.to == after.from_ for before, after in pairwise(changes))
    winners = [changes[0].from_, *(change.to for change in changes)] if changes else [best_line(found, 1e7).name]
    for low, high, winner in zip(bounds[:-1], bounds[1:], winners, strict=True):
        mine = next(line for line in found if line.name == winner)
        for share in (0.01, 0.3, 0.5, 0.7, 0.99):
            size = low ** (1 - share) * high**share
            # lines that touch, or cross within rounding of the meeting, are equal there
            assert mine.time_s(size) <= best_line(found, size).time_s(size) * (1 + 1e-9)
