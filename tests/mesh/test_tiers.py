"""Tier formulas against counting the members of real groups in each unit."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.mesh import (
    AXES,
    COMPOSITES,
    EXPERT_AXES,
    Mesh,
    fold_is_regular,
    hop_tiers,
    legs,
    members_per_unit,
    tier_of_legs,
    tier_spanned,
)
from meshwright.spec.layout import DEFAULT_ORDER, Layout
from random_layouts import layouts

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 72]), min_size=1, max_size=3, unique=True).map(
    lambda s: (*sorted(s), None)
)


def counted_tier(groups, sizes):
    """The first tier for which every group has all its members in one unit."""
    for tier, size in enumerate(sizes):
        if size is None or all(len({rank // size for rank in group}) == 1 for group in groups):
            return tier
    return len(sizes) - 1


def counted_members(groups, size):
    """The largest number of members into which each group's share of each unit divides."""
    if size is None:
        return len(groups[0])
    shares = [share for group in groups for share in Counter(rank // size for rank in group).values()]
    return math.gcd(*shares)


@settings(max_examples=300)
@given(layouts(max_world=300), SIZES)
def test_a_pipelines_hops_equal_counting(layout, sizes):
    """For each place the widest tier of all pipelines, and the same for an array of layouts."""
    groups, stride = Mesh(layout).groups("pp"), Mesh(layout).stride("pp")
    world, pp = Mesh(layout).world_size, layout.pp
    found = hop_tiers(stride, pp, world, sizes)
    columns = hop_tiers(np.array([stride, stride]), pp, np.array([world, world]), sizes)
    for place in range(pp if pp > 1 else 0):
        pairs = [(group[place], group[(place + 1) % pp]) for group in groups]
        assert found[place] == counted_tier(pairs, sizes), place
        assert (columns[place] == found[place]).all()


@settings(max_examples=300)
@given(layouts(max_world=300), SIZES)
def test_tier_and_members_equal_counting(layout, sizes):
    mesh = Mesh(layout)
    axes = [*AXES, *COMPOSITES, "ulysses", "ring", *(EXPERT_AXES.values() if fold_is_regular(layout) else ())]
    for axis in axes:
        groups = list(mesh.groups(axis))
        parts = mesh.legs(axis)
        assert tier_of_legs(parts, mesh.world_size, sizes) == counted_tier(groups, sizes), axis
        for size in sizes:
            members = members_per_unit(parts, mesh.world_size, size)
            assert members == counted_members(groups, size), (axis, size)


@settings(max_examples=200)
@given(layouts(max_world=300), SIZES)
def test_embedding_pairs_span_the_tier_of_their_pipeline(layout, sizes):
    mesh = Mesh(layout)
    assert tier_of_legs(mesh.legs("pp"), mesh.world_size, sizes) == counted_tier(list(mesh.end_stages()), sizes)


@pytest.mark.parametrize("axis", [*AXES, *COMPOSITES, *EXPERT_AXES.values(), "ulysses", "ring", "kv"])
def test_arrays_of_layouts_give_the_numbers_of_single_layouts(axis):
    """One formula, two callers: the same functions over 2,000 layouts at once and one at a time, equal to the integer."""
    rng = np.random.default_rng(0)
    many = ArrayLayout(rng, 2000)
    world = many.tp * many.cp * many.pp * many.dp_replicate * many.dp_shard
    parts = legs(many, axis, kv_heads=4)
    tiers = tier_of_legs(parts, world, (4, 8, 64, None)) + 0 * world
    shares = {size: members_per_unit(parts, world, size) for size in (4, 8, 64, None)}
    for i in range(0, 2000, 7):
        mesh = Mesh(many.one(i), kv_heads=4)
        assert tiers[i] == tier_of_legs(mesh.legs(axis), mesh.world_size, (4, 8, 64, None))
        for size, members in shares.items():
            assert members[i] == members_per_unit(mesh.legs(axis), mesh.world_size, size)


class ArrayLayout:
    """Arrays of degrees under the names of a Layout, as the search has them."""

    order = DEFAULT_ORDER

    def __init__(self, rng, count):
        for axis in AXES:
            setattr(self, axis, rng.choice([1, 1, 2, 3, 4, 8], count))
        self.ulysses = np.gcd(self.cp, 2)
        self.etp = np.gcd(self.tp, rng.choice([1, 2, 8], count))
        self.ep = np.gcd(self.tp * self.cp * self.dp_shard // self.etp, rng.choice([1, 4, 6, 64], count))

    def one(self, i):
        names = (*AXES, "ulysses", "etp", "ep")
        return Layout(**{name: int(getattr(self, name)[i]) for name in names}, cp_kind="usp")


def test_worked_case_spans_node_then_network():
    """64 ranks on nodes of 8: tp=8 fills a node, dp and pp cross; each node has one member of a dp group."""
    mesh = Mesh(Layout(tp=8, dp_shard=2, pp=4))
    sizes = (8, None)
    assert [tier_of_legs(mesh.legs(axis), 64, sizes) for axis in ("tp", "dp", "pp")] == [0, 1, 1]
    assert [members_per_unit(mesh.legs(axis), 64, 8) for axis in ("tp", "dp", "pp")] == [8, 1, 1]
    assert members_per_unit(mesh.legs("world"), 64, 8) == 8


@pytest.mark.parametrize(
    ("stride", "degree", "world", "tier"),
    [
        (1, 8, 64, 0),
        (1, 16, 64, 1),
        (8, 2, 64, 1),
        (1, 6, 48, 1),
        (2, 4, 64, 0),
        (1, 64, 64, 1),
        (1, 1, 64, 0),
        (32, 1, 64, 0),
        (1, 4, 4, 0),
    ],
)
def test_tier_of_one_leg_on_nodes_of_8(stride, degree, world, tier):
    """Six ranks do not divide a node of eight: some group straddles, so the network carries it."""
    assert tier_spanned(stride, degree, world, (8, None)) == tier
