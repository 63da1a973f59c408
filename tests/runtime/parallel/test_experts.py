"""Expert parallelism against a plain loop over experts on one device, in float64: output and every gradient.

D = 6, F = 4, E = 8 experts, k = 2. The routing is random and lopsided: experts without tokens are in it, and a rank without any.
"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.parallel.experts import (
    ExpertAxes,
    Load,
    bring_back,
    combine,
    grouped_linear,
    plan_dispatch,
    run_experts,
    send_to_experts,
    sum_balance_statistics,
)  # fmt: skip
from meshwright.spec.layout import Layout
from runtime.parallel.sharded import close, facts, groups_of, leaf, part, random, recorded

pytestmark = pytest.mark.dist

D, FFN, E, K = 6, 4, 8, 2
ROW_BYTES = D * 8


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def routing(tokens: int, rank: int, lopsided: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights of a data rank's tokens. Lopsided: only experts 0 to 3, of which expert 1 is never chosen."""
    generator = torch.Generator().manual_seed(100 + rank)
    choices = torch.tensor([0, 2, 3]) if lopsided else torch.arange(E)
    chosen = [choices[torch.randperm(len(choices), generator=generator)[:K]] for _ in range(tokens)]
    experts = torch.stack(chosen) if chosen else torch.empty(0, K, dtype=torch.int64)
    return experts, torch.rand(tokens, K, generator=generator, dtype=torch.float64)


def parameters() -> list:
    shapes = [(E * 2 * FFN, D), (E * D, FFN), (E * 2 * FFN,), (E * D,)]
    return [leaf(random(*shape, seed=20 + i)) for i, shape in enumerate(shapes)]


def one_device(x, experts, weights, gate_up, down, gate_up_bias, down_bias):
    out = torch.zeros_like(x)
    for e in range(E):
        token, slot = (experts == e).nonzero(as_tuple=True)
        up = F.linear(x[token], gate_up.unflatten(0, (E, -1))[e], gate_up_bias.unflatten(0, (E, -1))[e])
        rows = F.linear(swiglu(up), down.unflatten(0, (E, -1))[e], down_bias.unflatten(0, (E, -1))[e])
        out = out.index_add(0, token, rows * weights[token, slot, None])
    return out


def gate_up_slice(weight, ep, etp):
    """This rank's experts, and of each the same slice of its gate and of its up rows."""
    experts = weight.unflatten(0, (E, 2, FFN)).chunk(ep.size)[ep.place]
    return experts.chunk(etp.size, 2)[etp.place].flatten(0, 2)


def down_slice(weight, ep, etp):
    return weight.chunk(ep.size)[ep.place].chunk(etp.size, 1)[etp.place]


def compare(layout: Layout, lopsided: bool) -> list:
    """dp ranks have different tokens (one of them none if lopsided); with sp the tp ranks share a dp rank's tokens out."""
    groups = groups_of(layout)
    axes = ExpertAxes(ep=groups["ep"], etp=groups["etp"], sp=layout.sp)
    tp, dp = groups["tp"], groups["dp_shard"]
    sizes = [0 if lopsided and rank == 1 else 8 for rank in range(dp.size)]
    xs = [leaf(random(size, D, seed=rank)) for rank, size in enumerate(sizes)]
    routings = [routing(size, rank, lopsided) for rank, size in enumerate(sizes)]
    scores = [leaf(weights) for _, weights in routings]
    upstreams = [random(size, D, seed=50 + rank) for rank, size in enumerate(sizes)]
    full = parameters()
    outs = [one_device(x, experts, w, *full) for x, (experts, _), w in zip(xs, routings, scores, strict=True)]
    torch.autograd.backward(outs, upstreams)

    def own(tensor):
        return part(tensor, tp, 0) if layout.sp else tensor

    mine = dp.place
    x, w = leaf(own(xs[mine])), leaf(own(scores[mine]))
    experts = own(routings[mine][0])
    local = [
        leaf(gate_up_slice(full[0], axes.ep, axes.etp)), leaf(down_slice(full[1], axes.ep, axes.etp)),
        leaf(gate_up_slice(full[2], axes.ep, axes.etp)), leaf(full[3].chunk(axes.ep.size)[axes.ep.place]),
    ]  # fmt: skip

    def forward():
        dispatch = plan_dispatch(experts, E, axes)
        rows = send_to_experts(x, dispatch, axes)
        rows = run_experts(rows, local[0], local[1], swiglu, dispatch, axes, local[2], local[3])
        return combine(bring_back(rows, dispatch, axes), w, dispatch)

    result, events = recorded(groups, forward, lambda _: own(upstreams[mine]))
    close(result, own(outs[mine]))
    close(x.grad, own(xs[mine].grad))
    close(w.grad, own(scores[mine].grad))
    expected = [
        gate_up_slice(full[0].grad, axes.ep, axes.etp), down_slice(full[1].grad, axes.ep, axes.etp),
        gate_up_slice(full[2].grad, axes.ep, axes.etp), full[3].grad.chunk(axes.ep.size)[axes.ep.place],
    ]  # fmt: skip
    for actual, wanted in zip(local, expected, strict=True):
        total = actual.grad.clone()
        if groups["edp"].group is not None:  # what data parallelism over the rest of the fold will do
            dist.all_reduce(total, group=groups["edp"].group)
        close(total, wanted)
    return events


LAYOUTS = {
    "ep=4": Layout(dp_shard=4, ep=4),
    "ep=2 of dp=4": Layout(dp_shard=4, ep=2),
    "ep=2 etp=2 with sp": Layout(tp=2, sp=True, dp_shard=2, ep=2, etp=2),
    "ep=2 etp=2 without sp": Layout(tp=2, dp_shard=2, ep=2, etp=2),
    "ep=4 etp=1 over tp and dp": Layout(tp=2, sp=True, dp_shard=2, ep=4, etp=1),
    "etp=2 alone with sp": Layout(tp=2, sp=True, dp_shard=1, etp=2),
}


@pytest.mark.parametrize("lopsided", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_output_and_gradients(name: str, lopsided: bool) -> None:
    layout = LAYOUTS[name]
    run_ranks(compare, layout.world_size, (layout, lopsided))


def test_what_is_sent_over_ep() -> None:
    """Counts as int64 [E], then rows by the routing, both ways; the rows by hand from the routing itself."""
    ranks = run_ranks(compare, 4, (LAYOUTS["ep=4"], True))
    sent = [[int((routing(0 if source == 1 else 8, source, True)[0] // 2 == target).sum()) for target in range(4)] for source in range(4)]
    assert sent[1] == [0, 0, 0, 0] and all(row[2] == row[3] == 0 for row in sent)
    for rank, events in enumerate(ranks):
        out, back = sum(sent[rank]) * ROW_BYTES, sum(row[rank] for row in sent) * ROW_BYTES
        assert facts(events) == [
            ("forward", "ep", "all_to_all", "", "int64", 8 * E),
            ("forward", "ep", "all_to_all", "", "float64", out),
            ("forward", "ep", "all_to_all", "", "float64", back),
            ("backward_input", "ep", "all_to_all", "", "float64", out),
            ("backward_input", "ep", "all_to_all", "", "float64", back),
        ]
        assert events[1].input_splits == tuple(sent[rank])
        assert events[1].output_splits == tuple(row[rank] for row in sent)


def test_what_is_sent_over_etp() -> None:
    for events in run_ranks(compare, 2, (LAYOUTS["etp=2 alone with sp"], False)):
        # T = 4 tokens on each rank, k = 2: 8 copies each, gathered to 16
        assert facts(events) == [
            ("forward", "etp", "all_gather", "", "int64", 2 * E * 8),
            ("forward", "etp", "all_gather", "", "float64", 16 * ROW_BYTES),
            ("forward", "etp", "reduce_scatter", "sum", "float64", 16 * ROW_BYTES),
            ("backward_input", "etp", "all_gather", "", "float64", 16 * ROW_BYTES),
            ("backward_input", "etp", "reduce_scatter", "sum", "float64", 16 * ROW_BYTES),
        ]
    for events in run_ranks(compare, 4, (LAYOUTS["ep=2 etp=2 without sp"], False)):
        assert [(op, group) for _, group, op, *_ in facts(events)] == [
            ("all_to_all", "ep"), ("all_to_all", "ep"), ("all_reduce", "etp"), ("all_to_all", "ep"),
            ("all_to_all", "ep"), ("all_reduce", "etp"), ("all_to_all", "ep"),
        ]  # fmt: skip


def with_a_load() -> list:
    """The numbers of copies come from outside, as where tensors are fake; here they are the routing's own."""
    groups = groups_of(Layout(dp_shard=2, ep=2))
    axes = ExpertAxes(ep=groups["ep"], etp=groups["etp"], sp=False)
    experts = torch.arange(E).view(4, K)
    load = Load(sent=(1,) * E, received=((1,) * 4, (1,) * 4))
    x = random(4, D)
    given, counted = plan_dispatch(experts, E, axes, load), plan_dispatch(experts, E, axes)
    assert (given.sent, given.received, given.blocks, given.counts) == (counted.sent, counted.received, counted.blocks, counted.counts)
    close(send_to_experts(x, given, axes), send_to_experts(x, counted, axes))
    return []


def test_a_load_from_outside_takes_the_place_of_the_routers_counts() -> None:
    run_ranks(with_a_load, 2)


def balance() -> None:
    groups = groups_of(Layout(tp=2, sp=True, cp=2))
    statistics = leaf(random(2, E, seed=dist.get_rank()))
    total, events = recorded(groups, lambda: sum_balance_statistics(statistics, groups["cp"], groups["tp"], True))
    close(total, sum(random(2, E, seed=rank) for rank in range(4)))
    close(statistics.grad, torch.ones(2, E, dtype=torch.float64))
    assert facts(events) == [("forward", axis, "all_reduce", "sum", "float64", 2 * E * 8) for axis in ("cp", "tp")]


def test_balance_statistics_are_of_the_whole_micro_batch() -> None:
    run_ranks(balance, 4)


def test_grouped_linear_is_one_linear_layer_per_expert() -> None:
    x, weight, bias = leaf(random(5, 3)), leaf(random(6, 3, seed=1)), leaf(random(6, seed=2))
    out = grouped_linear(x, weight, bias, (2, 0, 3))
    expected = torch.cat([F.linear(x[:2], weight[:2], bias[:2]), F.linear(x[2:], weight[4:], bias[4:])])
    close(out, expected)
    gradients = torch.autograd.grad(out.square().sum(), (x, weight, bias))
    for actual, wanted in zip(gradients, torch.autograd.grad(expected.square().sum(), (x, weight, bias)), strict=True):
        close(actual, wanted)
    assert not gradients[1][2:4].any()
