"""Rank groups against Megatron-Core's own RankGenerator, for every order and for all orders of the expert fold it accepts."""

import itertools
import warnings
from importlib.util import find_spec

import pytest

from meshwright.mesh import Mesh
from meshwright.spec.layout import Layout
from random_layouts import ORDERS

if find_spec("megatron") is None:
    pytest.skip("megatron-core is not installed: its wheels are for Linux on x86-64", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of Apex and Transformer Engine, which ranks do not need
    from megatron.core.parallel_state import RankGenerator

DENSE = {
    "tp": "tp",
    "cp": "cp",
    "dp": "dp",
    "pp": "pp",
    "dp_cp": "dp-cp",
    "tp,pp": "tp-pp",
    "cp,tp": "tp-cp",
    "dp_cp_tp": "tp-dp-cp",
    "dp,tp": "tp-dp",
}
"""Our axis: Megatron's token, for each group that its initialize_model_parallel makes."""

SIZES = [
    {"tp": 2, "cp": 1, "dp": 4, "pp": 3},
    {"tp": 4, "cp": 2, "dp": 3, "pp": 2},
    {"tp": 1, "cp": 4, "dp": 2, "pp": 1},
    {"tp": 3, "cp": 2, "dp": 4, "pp": 2},
    {"tp": 8, "cp": 1, "dp": 2, "pp": 4},
]


def as_lists(groups):
    return [list(group) for group in groups]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "-".join(f"{k}{v}" for k, v in s.items()))
def test_dense_groups_equal_megatron(sizes):
    for order in ORDERS:
        generator = RankGenerator(**sizes, ep=1, order=order)
        mesh = Mesh(Layout(tp=sizes["tp"], cp=sizes["cp"], dp_shard=sizes["dp"], pp=sizes["pp"], order=order))
        for axis, token in DENSE.items():
            assert as_lists(mesh.groups(axis)) == generator.get_ranks(token), (order, axis)
        ends = [[ranks[0], ranks[-1]] if len(ranks) > 1 else ranks for ranks in generator.get_ranks("pp")]  # default_embedding_ranks
        assert as_lists(mesh.end_stages()) == ends, order


@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "-".join(f"{k}{v}" for k, v in s.items()))
def test_expert_groups_equal_megatron(sizes):
    """Its second generator lays etp, ep and the experts' data parallelism over the same ranks; see accepted()."""
    compared = 0
    fold = sizes["tp"] * sizes["cp"] * sizes["dp"]
    for order, etp, ep in itertools.product(ORDERS, divisors(fold), divisors(fold)):
        if fold % (etp * ep) == 0 and accepted(sizes, order, etp, ep):
            compare_experts(sizes, order, etp, ep)
            compared += 1
    assert compared >= len(ORDERS)


def compare_experts(sizes, order, etp, ep):
    generator = expert_generator(sizes, order, etp, ep)
    mesh = Mesh(Layout(tp=sizes["tp"], cp=sizes["cp"], dp_shard=sizes["dp"], pp=sizes["pp"], etp=etp, ep=ep, order=order))
    for axis, token in {"etp": "tp", "ep": "ep", "edp": "dp", "pp": "pp"}.items():
        assert as_lists(mesh.groups(axis)) == generator.get_ranks(token), (order, etp, ep, axis)


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_lie_outside_the_shards_as_megatrons_optimizer_instances(replicas):
    """num_distributed_optimizer_instances cuts a dp-cp group into consecutive parts; experts' dp runs over all of them."""
    tp, cp, shard, pp, etp, ep = 2, 2, 4, 2, 1, 8
    layout = Layout(tp=tp, cp=cp, dp_replicate=replicas, dp_shard=shard, pp=pp, etp=etp, ep=ep)
    dense = RankGenerator(tp=tp, cp=cp, dp=replicas * shard, pp=pp, ep=1, order=layout.order)
    part = shard * cp
    instances = [group[i * part : (i + 1) * part] for group in dense.get_ranks("dp-cp") for i in range(replicas)]
    assert as_lists(Mesh(layout).groups("fsdp")) == sorted(instances)
    experts = expert_generator({"tp": tp, "cp": cp, "dp": replicas * shard, "pp": pp}, layout.order, etp, ep)
    assert as_lists(Mesh(layout).groups("etp")) == experts.get_ranks("tp")
    assert as_lists(Mesh(layout).groups("ep")) == experts.get_ranks("ep")
    all_edp = sorted(rank for group in Mesh(layout).groups("edp") for rank in group)
    assert all_edp == sorted(rank for group in experts.get_ranks("dp") for rank in group)
    for group in Mesh(layout).groups("edp"):
        assert any(set(group) <= set(whole) for whole in experts.get_ranks("dp"))


def expert_generator(sizes, order, etp, ep):
    world = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
    return RankGenerator(tp=etp, ep=ep, dp=world // (etp * ep * sizes["pp"]), pp=sizes["pp"], cp=1, order=order)


def accepted(sizes, order, etp, ep):
    """What initialize_model_parallel asserts: pp last, or no pp, or equal data parallelism; and equal pp groups."""
    dense = RankGenerator(**sizes, ep=1, order=order)
    experts = expert_generator(sizes, order, etp, ep)
    legal = order.endswith("pp") or sizes["pp"] == 1 or experts.dp == sizes["dp"]
    return legal and dense.get_ranks("pp") == experts.get_ranks("pp")


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]
