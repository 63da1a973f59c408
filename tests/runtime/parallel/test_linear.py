"""Column and row layers against one unsharded linear layer, in float64, and what they send against DESIGN section 4.1.

B = 2, S = 8, D = 6, F = 16, tp = 2 or 4: a full tensor [B, S, D] has 96 entries, 768 bytes.
"""

import pytest
import torch
import torch.nn.functional as F

from meshwright.mesh import Mesh
from meshwright.runtime.groups import PIPELINE_AXES, make_groups
from meshwright.runtime.launch import run_ranks
from meshwright.runtime.parallel.comm import all_to_all, copy_to, gather_from, join_from, reduce_from, reduce_scatter_to, split_to
from meshwright.runtime.parallel.linear import column_linear, row_linear, sum_over_copies
from meshwright.spec.layout import Layout
from runtime.parallel.sharded import close, facts, groups_of, leaf, part, random, recorded

pytestmark = pytest.mark.dist

STREAM_BYTES = 2 * 8 * 6 * 8


def pair(tp: int, sp: bool) -> list:
    """up (column), tanh, down (row), both with a bias, on sharded weights; compared with one device here, on each rank."""
    groups = groups_of(Layout(tp=tp, sp=sp))
    axis = groups["tp"]
    x, up, up_bias, down, down_bias = (leaf(random(*shape, seed=i)) for i, shape in enumerate([(2, 8, 6), (16, 6), (16,), (6, 16), (6,)]))
    upstream = random(2, 8, 6, seed=9)
    expected = F.linear(F.linear(x, up, up_bias).tanh(), down, down_bias)
    expected.backward(upstream)

    def stream(tensor):
        return part(tensor, axis, 1) if sp else tensor

    local = [leaf(t) for t in (stream(x), part(up, axis, 0), part(up_bias, axis, 0), part(down, axis, 1), down_bias)]

    def forward():
        hidden = column_linear(local[0], local[1], local[2], axis, sp).tanh()
        return row_linear(hidden, local[3], local[4], axis, sp)

    result, events = recorded(groups, forward, lambda _: stream(upstream).contiguous())
    close(result, stream(expected))
    close(local[0].grad, stream(x.grad))
    close(local[1].grad, part(up.grad, axis, 0))
    close(local[2].grad, part(up_bias.grad, axis, 0))
    close(local[3].grad, part(down.grad, axis, 1))
    if sp:  # a summand: each rank saw its own tokens
        close(local[4].grad, stream(upstream).sum((0, 1)))
    else:
        close(local[4].grad, down_bias.grad)
    return events


@pytest.mark.parametrize("tp", [2, 4])
def test_without_sp_one_all_reduce_each_way(tp: int) -> None:
    for events in run_ranks(pair, tp, (tp, False)):
        assert facts(events) == [
            ("forward", "tp", "all_reduce", "sum", "float64", STREAM_BYTES),
            ("backward_input", "tp", "all_reduce", "sum", "float64", STREAM_BYTES),
        ]


@pytest.mark.parametrize("tp", [2, 4])
def test_with_sp_gathers_and_scatters_and_the_saved_input_gathered_again(tp: int) -> None:
    for events in run_ranks(pair, tp, (tp, True)):
        assert facts(events) == [
            ("forward", "tp", "all_gather", "", "float64", STREAM_BYTES),
            ("forward", "tp", "reduce_scatter", "sum", "float64", STREAM_BYTES),
            ("backward_input", "tp", "all_gather", "", "float64", STREAM_BYTES),
            ("backward_weight", "tp", "all_gather", "", "float64", STREAM_BYTES),
            ("backward_input", "tp", "reduce_scatter", "sum", "float64", STREAM_BYTES),
        ]


def saved_bytes(sp: bool) -> int:
    axis = groups_of(Layout(tp=2, sp=sp))["tp"]
    x, weight = leaf(random(2, 8 // (2 if sp else 1), 6)), leaf(random(8, 6))
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        column_linear(x, weight, None, axis, sp)
    return sum(s.nbytes() for s in storages.values() if s._cdata != weight.untyped_storage()._cdata)


def test_the_column_layer_keeps_its_input_sharded() -> None:
    assert run_ranks(saved_bytes, 2, (False,)) == [STREAM_BYTES] * 2
    assert run_ranks(saved_bytes, 2, (True,)) == [STREAM_BYTES // 2] * 2


def pairs_of_collectives() -> None:
    """Each function's forward and gradient, where the ranks go on in different ways (copy, gather) or the same (reduce, join)."""
    axis = groups_of(Layout(tp=2))["tp"]
    place = axis.place
    whole, weights = random(2, 4, 3), random(2, 2, 4, 3, seed=1)
    cases = [  # function, input on this rank, its result, weights of the result, the input's gradient
        (copy_to, whole, whole, weights[place], weights.sum(0)),
        (reduce_from, whole * (place + 1), whole * 3, weights[0], weights[0]),
        (lambda x, a: gather_from(x, a, 1), part(whole, axis, 1), whole, weights[place], part(weights.sum(0), axis, 1)),
        (lambda x, a: reduce_scatter_to(x, a, 1), whole * (place + 1), part(whole * 3, axis, 1), part(weights[0], axis, 1), weights[0]),
        (lambda x, a: split_to(x, a, 1), whole, part(whole, axis, 1), part(weights[0], axis, 1), weights[0]),
        (lambda x, a: join_from(x, a, 1), part(whole, axis, 1), whole, weights[0], part(weights[0], axis, 1)),
    ]
    for function, given, expected, weight, gradient in cases:
        x = leaf(given)
        y = function(x, axis)
        close(y, expected)
        (y * weight).sum().backward()
        close(x.grad, gradient)
    rows = [[1, 3], [0, 2]]  # rows[a][b]: from a to b; rank 0 receives 1, rank 1 receives 5
    x = leaf(random(sum(rows[place]), 3, seed=place))
    y = all_to_all(x, axis, rows[place], [rows[0][place], rows[1][place]])
    first, second = random(4, 3, seed=0), random(2, 3, seed=1)
    close(y, first[:1] if place == 0 else torch.cat((first[1:], second)))
    (y * y).sum().backward()
    close(x.grad, 2 * x)


def test_each_pair_of_collectives() -> None:
    run_ranks(pairs_of_collectives, 2)


def copies_of_kv_heads() -> list:
    """tp = 4 and 2 kv heads: ranks 0, 1 and ranks 2, 3 hold copies, whose gradients must be summed and equal on both."""
    groups = groups_of(Layout(tp=4), kv_heads=2)
    kv = groups["kv"]
    weight = leaf(random(5, 3))
    rank = groups["tp"].place

    def forward():
        return (sum_over_copies([weight], 2, kv)[0] * (rank + 1)).sum()

    _, events = recorded(groups, forward)
    expected = torch.full((5, 3), rank + 1.0, dtype=torch.float64)
    expected[2:] = 3 if rank < 2 else 7
    close(weight.grad, expected)
    assert kv.ranks == ((0, 1) if rank < 2 else (2, 3))
    return events


def test_gradients_of_replicated_kv_rows_are_summed_over_their_copies() -> None:
    for events in run_ranks(copies_of_kv_heads, 4):
        assert facts(events) == [("reduce", "kv", "all_reduce", "sum", "float64", 3 * 3 * 8)]


def names_and_meshes() -> tuple:
    groups = groups_of(Layout(tp=2, dp_replicate=2, dp_shard=2))
    mesh = groups.device_mesh("fsdp", "dp_replicate")
    assert mesh.get_group("fsdp") is groups["fsdp"].group and mesh.get_group("dp_replicate") is groups["dp_replicate"].group
    return groups["tp"].name, groups["fsdp"].name, groups["world"].name, mesh.mesh.tolist(), groups["ep"].group is None


def test_groups_have_stable_names_and_fsdp_shares_them() -> None:
    found = run_ranks(names_and_meshes, 8)
    # order tp-cp-ep-dp-pp, dp_shard inside dp_replicate: rank = tp + 2 dp_shard + 4 dp_replicate
    assert [each[0] for each in found] == ["tp.0", "tp.0", "tp.1", "tp.1", "tp.2", "tp.2", "tp.3", "tp.3"]
    assert [each[1] for each in found] == ["fsdp.0", "fsdp.1", "fsdp.0", "fsdp.1", "fsdp.2", "fsdp.3", "fsdp.2", "fsdp.3"]
    assert {each[2] for each in found} == {"world.0"} and all(each[4] for each in found)
    assert [each[3] for each in found] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]] * 4


def pipeline_groups() -> tuple:
    groups = make_groups(Mesh(Layout(pp=4, tp=2)), torch.distributed.get_rank(), 60, axes=("pp", *PIPELINE_AXES))
    return [(groups[axis].name, groups[axis].ranks) for axis in ("pp", "embedding", "mirror")]


def test_groups_of_a_pipeline() -> None:
    found = run_ranks(pipeline_groups, 8)  # rank = tp + 2 stage
    ends = [("embedding.0", (0, 6)), ("embedding.1", (1, 7))]
    for rank, (pp, embedding, mirror) in enumerate(found):
        stage, tp = divmod(rank, 2)
        assert pp == (f"pp.{tp}", tuple(range(tp, 8, 2)))
        assert embedding == (ends[tp] if stage in (0, 3) else (f"embedding.{rank}", (rank,)))
        pair = min(stage, 3 - stage)
        assert mirror == (f"mirror.{2 * tp + pair}", (tp + 2 * pair, tp + 2 * (3 - pair)))
