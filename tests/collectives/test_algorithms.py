"""Every algorithm computes its collective, and sends exactly what its formula says, for 1 to 64 ranks."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.collectives.algorithms import OPS, algorithms, bruck, direct, hierarchical, ring, tree
from meshwright.collectives.verify import verify

FLAT = [(op, algorithm.name) for op in OPS for algorithm in algorithms(op, 1)]
TWO_LEVELS = [("all_reduce", "hierarchical"), ("all_to_all", "hierarchical"), ("all_to_all", "rail")]
SIZES = sorted({*range(1, 18), 23, 24, 31, 32, 33, 48, 63, 64})
PAYLOAD = float(64 * 63 * 61 * 59 * 53 * 17 * 13 * 11 * 5)  # a multiple of most group sizes, so that the formulas are whole numbers


def find(op: str, name: str, ranks: int, ranks_per_node: int | None = None):
    return next(a for a in algorithms(op, ranks, ranks_per_node) if a.name == name)


def assert_counts_equal_formulas(algorithm, steps) -> None:
    n = steps.ranks
    assert steps.num_steps == algorithm.steps(n)
    # both sides are sums of a few multiples of PAYLOAD / n: 1e-12 is their rounding, any lost chunk is above 1 / 64^2
    assert steps.sent_bytes(PAYLOAD).max(initial=0) == pytest.approx(algorithm.wire_bytes(PAYLOAD, n), rel=1e-12)
    assert steps.sent_bytes(PAYLOAD).sum() == pytest.approx(algorithm.total_bytes(PAYLOAD, n), rel=1e-12)


@pytest.mark.parametrize(("op", "name"), FLAT, ids="-".join)
@pytest.mark.parametrize("ranks", SIZES)
def test_ends_right_and_sends_what_the_formula_says(op, name, ranks):
    algorithm = find(op, name, ranks)
    steps = algorithm.build(ranks)
    assert steps.op == op
    assert verify(steps) == []
    assert_counts_equal_formulas(algorithm, steps)


@pytest.mark.parametrize(("op", "name"), TWO_LEVELS, ids="-".join)
@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("local", [2, 3, 4, 7, 8])
def test_two_levels_end_right_and_send_what_the_formula_says(op, name, nodes, local):
    ranks = nodes * local
    algorithm = find(op, name, ranks, local)
    steps = algorithm.build(ranks)
    assert verify(steps) == []
    assert_counts_equal_formulas(algorithm, steps)


@settings(max_examples=60, deadline=None)
@given(ranks=st.integers(1, 64), choice=st.sampled_from(FLAT))
def test_any_group_size(ranks, choice):
    algorithm = find(*choice, ranks)
    steps = algorithm.build(ranks)
    assert verify(steps) == []
    assert_counts_equal_formulas(algorithm, steps)


@pytest.mark.parametrize(("op", "name"), FLAT, ids="-".join)
def test_one_rank_costs_nothing(op, name):
    algorithm = find(op, name, 1)
    assert len(algorithm.build(1)) == 0
    assert algorithm.steps(1) == 0
    assert algorithm.wire_bytes(1e9, 1) == 0
    assert algorithm.total_bytes(1e9, 1) == 0


@given(ranks=st.integers(1, 64), payload=st.integers(1, 1 << 40))
def test_all_reduce_is_reduce_scatter_and_all_gather_in_bytes(ranks, payload):
    for name in ("ring", "pat", "naive"):
        parts = [find(op, name, ranks).total_bytes(payload, ranks) for op in ("reduce_scatter", "all_gather")]
        assert find("all_reduce", name, ranks).total_bytes(payload, ranks) == pytest.approx(sum(parts), rel=1e-12)
    halves = direct.exchange_wire_bytes(payload, ranks)
    assert direct.two_shot_wire_bytes(payload, ranks) == pytest.approx(2 * halves, rel=1e-12)


@pytest.mark.parametrize(("op", "name"), FLAT, ids="-".join)
def test_formulas_take_arrays_of_group_sizes(op, name):
    sizes = np.array([1, 2, 3, 8, 12, 64])
    algorithm = find(op, name, 2)
    for formula in (algorithm.wire_bytes, algorithm.total_bytes):
        assert list(formula(PAYLOAD, sizes)) == [formula(PAYLOAD, int(n)) for n in sizes]
    assert list(algorithm.steps(sizes)) == [algorithm.steps(int(n)) for n in sizes]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 13, 64])
@pytest.mark.parametrize("op", OPS)
def test_no_algorithm_sends_less_than_the_lower_bound(op, ranks):
    """Every rank must be sent what it lacks: (n-1)/n M each, twice for all_reduce (Patarasuk and Yuan 2009, Theorem 1)."""
    bound = Fraction(ranks - 1) * (2 if op == "all_reduce" else 1)
    for algorithm in algorithms(op, ranks):
        steps = algorithm.build(ranks)
        pieces = steps.chunks // (ranks if op == "all_to_all" else 1)
        assert Fraction(len(steps), pieces) >= bound, algorithm.name


def test_ring_and_pairwise_load_a_port_with_their_wire_bytes():
    """One peer per step and full duplex: what the busiest port carries step by step is what a rank sends in all."""
    for steps in (ring.all_reduce(12), bruck.pat_all_gather(12), direct.pairwise_all_to_all(12), bruck.all_to_all(12)):
        assert steps.busiest_chunks().sum() == steps.sent_chunks().max()


def test_single_tree_is_uneven_and_double_tree_is_not():
    single, double = tree.all_reduce(64).sent_bytes(1.0), tree.double_all_reduce(64).sent_bytes(1.0)
    assert single.sum() == double.sum() == 2 * 63
    assert (single.min(), single.max()) == (1.0, 3.0)
    assert double.max() == 2.0
    assert (double == 2.0).sum() == 62  # all but the two roots


@pytest.mark.parametrize("ranks", range(2, 65))
def test_inner_ranks_of_one_tree_are_leaves_of_the_other(ranks):
    """Sanders, Speck and Traeff 2009: the reason that two trees use every port fully. Odd n has no room for rank 0."""
    parent = tree.parents(ranks)
    inner = np.isin(np.arange(ranks), parent)
    both = inner & inner[tree.second_tree(ranks)]
    assert set(np.flatnonzero(both)) <= ({0} if ranks % 2 else set())


def test_pat_sends_the_farthest_message_smallest_and_bruck_the_largest():
    pat, brucks = bruck.pat_all_gather(64), bruck.all_gather(64)
    assert list(pat.busiest_chunks()) == [1, 2, 4, 8, 16, 32]
    assert [int((pat.receiver - pat.sender)[pat.step == s][0]) % 64 for s in range(6)] == [32, 16, 8, 4, 2, 1]
    assert [int((brucks.receiver - brucks.sender)[brucks.step == s][0]) % 64 for s in range(6)] == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize(("nodes", "local"), [(2, 2), (4, 8), (8, 8)])
def test_hierarchical_sends_less_across_than_a_flat_ring(nodes, local):
    n = nodes * local
    flat, two_levels = ring.all_reduce(n), hierarchical.all_reduce(n, local)
    across = local * hierarchical.all_reduce_across_bytes(PAYLOAD, n, local)
    assert two_levels.sent_across(local) * two_levels.chunk_bytes(PAYLOAD) == pytest.approx(np.full(nodes, across), rel=1e-12)
    # one rank of the node sends over its border in every step of a flat ring
    assert flat.sent_across(local) * flat.chunk_bytes(PAYLOAD) == pytest.approx(np.full(nodes, ring.all_reduce_wire_bytes(PAYLOAD, n)))
    assert across < ring.all_reduce_wire_bytes(PAYLOAD, n)


@pytest.mark.parametrize("name", ["rail", "hierarchical"])
def test_hierarchical_all_to_all_crosses_with_the_same_bytes_in_fewer_messages(name):
    flat, two_levels = direct.pairwise_all_to_all(32), find("all_to_all", name, 32, 8).build(32)
    assert list(two_levels.sent_across(8)) == list(flat.sent_across(8))
    assert messages_across(two_levels, 8) * 8 <= messages_across(flat, 8)


def messages_across(steps, local: int) -> int:
    away = steps.sender // local != steps.receiver // local
    return len({*zip(steps.step[away], steps.sender[away], steps.receiver[away], strict=True)})


def test_nodes_must_be_full():
    with pytest.raises(ValueError, match="10 ranks do not fill nodes of 4"):
        hierarchical.all_reduce(10, 4)
    assert all(a.name != "hierarchical" for a in algorithms("all_reduce", 10, 4))
