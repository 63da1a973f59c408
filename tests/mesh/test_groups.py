"""Groups against plain enumeration: every rank is written down with its coordinates and the groups are read off."""

from collections import defaultdict
from itertools import product

import pytest
from hypothesis import assume, given, settings

from meshwright.mesh import AXES, COMPOSITES, EXPERT_AXES, Mesh, fold_is_regular
from meshwright.spec.layout import DEFAULT_ORDER, Layout
from random_layouts import layouts

EVERY_AXIS = [*AXES, *COMPOSITES, "cp,tp", "dp,tp", "pp,cp"]


def enumerated(layout: Layout) -> list[dict[str, int]]:
    """Coordinates of rank 0, 1, 2, ...: an odometer whose fastest wheel is the first axis of the order."""
    axes = []
    for word in layout.order.split("-"):
        axes += {"dp": ["dp_shard", "dp_replicate"], "ep": []}.get(word, [word])
    slowest_first = axes[::-1]
    wheels = [range(getattr(layout, axis)) for axis in slowest_first]
    return [dict(zip(slowest_first, places, strict=True)) for places in product(*wheels)]


def grouped(places: list[dict[str, int]], axes: set[str]) -> list[list[int]]:
    """Ranks that agree on all coordinates but ``axes``."""
    found = defaultdict(list)
    for rank, place in enumerate(places):
        found[tuple(sorted((axis, at) for axis, at in place.items() if axis not in axes))].append(rank)
    return sorted(found.values())


def with_expert_coordinates(layout: Layout) -> list[dict[str, int]]:
    """Coordinates with (tp, cp, dp_shard) replaced by the digits (etp, ep, edp) of the rank's number in its fold."""
    places = enumerated(layout)
    dense = [
        axis for word in layout.order.split("-") for axis in ({"dp": ["dp_shard"]}.get(word, [word])) if axis in ("tp", "cp", "dp_shard")
    ]
    digits = [EXPERT_AXES[word] for word in layout.order.split("-") if word in EXPERT_AXES]
    result = []
    for place in places:
        number, weight = 0, 1
        for axis in dense:
            number += weight * place[axis]
            weight *= getattr(layout, axis)
        new = {"dp_replicate": place["dp_replicate"], "pp": place["pp"]}
        for digit in digits:
            number, new[digit] = divmod(number, getattr(layout, digit))
        result.append(new)
    return result


@settings(max_examples=150)
@given(layouts())
def test_coordinates_and_rank_are_inverse(layout):
    mesh = Mesh(layout)
    places = enumerated(layout)
    assert mesh.world_size == layout.world_size == len(places)
    for rank, place in enumerate(places):
        assert mesh.coordinates(rank) == place
        assert mesh.rank(mesh.coordinates(rank)) == rank


@settings(max_examples=150)
@given(layouts())
def test_groups_equal_enumeration_and_partition_the_ranks(layout):
    mesh = Mesh(layout)
    places = enumerated(layout)
    for axis in EVERY_AXIS:
        expected = grouped(places, {name for word in axis.split(",") for name in COMPOSITES.get(word, [word])})
        groups = mesh.groups(axis)
        assert [list(group) for group in groups] == expected, axis
        assert len(groups) == len(expected)
        assert {len(group) for group in groups} == {mesh.degree(axis)}
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))


@settings(max_examples=150)
@given(layouts())
def test_expert_groups_equal_enumeration_of_the_fold(layout):
    assume(fold_is_regular(layout))
    mesh = Mesh(layout)
    places = with_expert_coordinates(layout)
    for axis in EXPERT_AXES.values():
        assert [list(group) for group in mesh.groups(axis)] == grouped(places, {axis}), axis
        assert mesh.degree(axis) == getattr(layout, axis)
    assert [list(group) for group in mesh.groups("edp_replicate")] == grouped(places, {"edp", "dp_replicate"})


@settings(max_examples=100)
@given(layouts(orders=[DEFAULT_ORDER, "tp-cp-ep-pp-dp", "tp-cp-dp-ep-pp", "cp-tp-ep-dp-pp"]))
def test_fold_of_usual_orders_is_always_regular(layout):
    """tp, cp and dp_shard next to each other: the fold is one stretch, however ep and etp cut it."""
    together = layout.dp_replicate == 1 or "pp-dp" not in layout.order
    assume(together and (layout.pp == 1 or "pp-dp" not in layout.order))
    assert fold_is_regular(layout)


def test_fold_across_a_gap_that_ep_does_not_meet_is_irregular():
    """tp=6, pp=2 between, dp=2: ep=4 would take ranks 0-3 for one group and 4, 5 and 12, 13 for the next."""
    layout = Layout(tp=6, pp=2, dp_shard=2, ep=4, etp=1, order="tp-ep-pp-dp-cp")
    assert not fold_is_regular(layout)
    assert fold_is_regular(Layout(tp=6, pp=2, dp_shard=2, ep=3, etp=2, order="tp-ep-pp-dp-cp"))


@settings(max_examples=100)
@given(layouts())
def test_group_of_finds_the_group_that_holds_the_rank(layout):
    mesh = Mesh(layout)
    axes = [*EVERY_AXIS, "ulysses", "ring", *((*EXPERT_AXES.values(), "edp_replicate") if fold_is_regular(layout) else ())]
    for axis in axes:
        for group in mesh.groups(axis)[:7]:
            for place, rank in enumerate(group):
                assert list(mesh.group_of(rank, axis)) == list(group)
                assert mesh.place(rank, axis) == place


@settings(max_examples=100)
@given(layouts())
def test_ulysses_is_the_inner_part_of_cp(layout):
    mesh = Mesh(layout)
    for cp_group in mesh.groups("cp")[:5]:
        for place, rank in enumerate(cp_group):
            inner = list(cp_group)[place // layout.ulysses * layout.ulysses :][: layout.ulysses]
            outer = list(cp_group)[place % layout.ulysses :: layout.ulysses]
            assert list(mesh.group_of(rank, "ulysses")) == inner
            assert list(mesh.group_of(rank, "ring")) == outer


@pytest.mark.parametrize(("tp", "kv_heads", "copies"), [(8, 8, 1), (8, 4, 2), (16, 8, 2), (8, 1, 8), (4, 8, 1)])
def test_kv_group_holds_the_ranks_with_the_same_kv_head(tp, kv_heads, copies):
    """Rank r of a tp group serves query heads [r N/tp, (r+1) N/tp), which belong to kv head r K // tp."""
    mesh = Mesh(Layout(tp=tp, cp=2, pp=2, order="cp-tp-ep-dp-pp"), kv_heads=kv_heads)
    assert mesh.degree("kv") == copies
    for group in mesh.groups("kv"):
        held = {mesh.coordinates(rank)["tp"] * kv_heads // tp for rank in group}
        assert copies == 1 or len(held) == 1


def test_end_stages_are_the_first_and_last_of_each_pipeline():
    mesh = Mesh(Layout(tp=2, pp=4, dp_shard=2))
    assert [list(group) for group in mesh.end_stages()] == [[0, 12], [1, 13], [2, 14], [3, 15]]
    assert [list(group) for group in Mesh(Layout(tp=2)).end_stages()] == [[0], [1]]
    assert [list(group) for group in Mesh(Layout(pp=2)).end_stages()] == [[0, 1]]


def test_an_axis_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="no axis is called 'dq'"):
        Mesh(Layout(tp=2)).groups("tp,dq")


def test_mirrors_pair_stage_i_with_p_minus_1_minus_i():
    assert Mesh(Layout(tp=2, pp=4)).mirrors() == [(0, 6), (2, 4), (1, 7), (3, 5)]


def test_worked_case_of_64_ranks():
    """tp=8 dp=2 pp=4: strides 1, 8, 16; stage 1 begins at rank 16 and the first dp group is 0 and 8."""
    mesh = Mesh(Layout(tp=8, dp_shard=2, pp=4))
    assert mesh.world_size == 64
    assert (mesh.stride("tp"), mesh.stride("dp"), mesh.stride("pp")) == (1, 8, 16)
    assert list(mesh.groups("tp")[0]) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert list(mesh.groups("dp")[0]) == [0, 8]
    assert list(mesh.groups("pp")[0]) == [0, 16, 32, 48]
    assert mesh.coordinates(27) == {"tp": 3, "cp": 0, "dp_shard": 1, "dp_replicate": 0, "pp": 1}


def test_groups_of_100_000_ranks_are_made_only_when_asked_for():
    """100,000 ranks: the last of 12,500 groups is a range, made by arithmetic."""
    groups = Mesh(Layout(tp=8, pp=10, dp_shard=1250)).groups("tp")
    assert len(groups) == 12_500
    assert groups[-1] == range(99_992, 100_000)
    with pytest.raises(IndexError):
        groups[12_500]
