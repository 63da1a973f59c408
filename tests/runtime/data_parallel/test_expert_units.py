"""Units with experts: their state lives on the rest of the expert fold (edp), the dense state on fsdp; each ZeRO stage against one device.

D = 6, F = 4, E = 4 experts, V = 8, S = 4. A token's experts are given by its id, so that one expert is never chosen.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meshwright.runtime.cut import Holder, Place, local_part
from meshwright.runtime.data_parallel.buckets import Buckets
from meshwright.runtime.data_parallel.fully_sharded import FullySharded
from meshwright.runtime.data_parallel.shares import AdamW, gradient_norm
from meshwright.runtime.data_parallel.units import Unit, add_parameters, hold
from meshwright.runtime.launch import run_ranks
from meshwright.runtime.parallel.experts import ExpertAxes, bring_back, combine, plan_dispatch, run_experts, send_to_experts
from meshwright.runtime.parallel.linear import column_linear
from meshwright.runtime.parallel.vocabulary import cross_entropy, embedding
from meshwright.runtime.recorder import Collected, Recorder
from meshwright.spec.layout import Layout
from meshwright.spec.model import Attention, LayerKind, Model, Moe
from meshwright.spec.parameters import Parameter
from runtime.parallel.sharded import close, groups_of, part, random

pytestmark = pytest.mark.dist

D, FFN, E, V, S, STEPS = 6, 4, 4, 8, 4, 2
MODEL = Model(
    name="small", vocab_size=V, hidden_size=D, ffn_size=FFN, layers=(LayerKind(moe=True),), activation="relu",
    attention=Attention(num_heads=2, num_kv_heads=2, head_dim=3), moe=Moe(num_experts=E, top_k=2, expert_ffn_size=FFN),
)  # fmt: skip
LAYER = (
    Parameter("moe.norm", "weight", (D,)),
    Parameter("moe.experts", "weight", (E * FFN, D), "expert_rows"),
    Parameter("moe.experts", "down_weight", (E * D, FFN), "expert_columns"),
    Parameter("moe.experts", "down_bias", (E * D,), "expert_whole"),
)
ROOT = (Parameter("embedding", "weight", (V, D), "vocab"), Parameter("head", "weight", (V, D), "vocab"))
PARAMETERS = {f"layers.0.{p.module}.{p.name}": p for p in LAYER} | {f"{p.module}.{p.name}": p for p in ROOT}


def routing(ids):
    """Experts [T, 2] of 0, 1 and 2 only, and their weights."""
    flat = ids.flatten()
    return torch.stack((flat % 3, (flat + 1) % 3), -1), torch.stack((0.25 + 0.05 * flat, 0.75 - 0.05 * flat), -1).double()


def data(step: int, dp: int):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, V, (2, dp, S), generator=generator)


def one_device(dp: int) -> tuple[dict, list[float]]:
    weights = {name: random(*p.shape, seed=i).requires_grad_() for i, (name, p) in enumerate(PARAMETERS.items())}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-2, eps=1e-6, weight_decay=0.01, foreach=False)
    norms = []
    for step in range(STEPS):
        ids, labels = data(step, dp)
        x = F.embedding(ids, weights["embedding.weight"])
        y = (x * weights["layers.0.moe.norm.weight"]).flatten(0, 1)
        experts, scores = routing(ids)
        out = torch.zeros_like(y)
        up, down, bias = (weights[f"layers.0.moe.experts.{name}"].unflatten(0, (E, -1)) for name in ("weight", "down_weight", "down_bias"))
        for e in range(E):
            token, slot = (experts == e).nonzero(as_tuple=True)
            rows = F.linear(F.linear(y[token], up[e]).relu(), down[e], bias[e])
            out = out.index_add(0, token, rows * scores[token, slot, None])
        logits = F.linear(x + out.view_as(x), weights["head.weight"])
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        norms.append(float(nn.utils.clip_grad_norm_(weights.values(), 1e9)))
        optimizer.step()
        optimizer.zero_grad()
    return weights, norms


class Layer(nn.Module):
    def __init__(self, groups, layout, local) -> None:
        super().__init__()
        self.axes = ExpertAxes(ep=groups["ep"], etp=groups["etp"], sp=layout.sp)
        add_parameters(self, local)

    def forward(self, x, experts, scores):
        dispatch = plan_dispatch(experts, E, self.axes)
        rows = send_to_experts((x * self.moe.norm.weight).flatten(0, 1), dispatch, self.axes)
        held = self.moe.experts
        rows = run_experts(rows, held.weight, held.down_weight, torch.relu, dispatch, self.axes, None, held.down_bias)
        return x + combine(bring_back(rows, dispatch, self.axes), scores, dispatch).view_as(x)


class Network(nn.Module):
    def __init__(self, groups, layout, local) -> None:
        super().__init__()
        self.tp, self.sp = groups["tp"], layout.sp
        prefix = "layers.0."
        self.layers = nn.ModuleList([Layer(groups, layout, {n.removeprefix(prefix): w for n, w in local.items() if n.startswith(prefix)})])
        add_parameters(self, {n: w for n, w in local.items() if not n.startswith(prefix)})

    def forward(self, ids, labels, count):
        x = embedding(ids, self.embedding.weight, self.tp, self.sp)
        mine = part(ids, self.tp, 1) if self.sp else ids
        x = self.layers[0](x, *routing(mine))
        return cross_entropy(column_linear(x, self.head.weight, None, self.tp, self.sp), labels, V, self.tp) / count


def train(layout: Layout) -> list[tuple]:
    groups = groups_of(layout)
    places = {axis: Place(groups[axis].place, groups[axis].size) for axis in ("tp", "ep", "etp")}
    holder = Holder(**places, padded_vocab=V)
    initial = {name: random(*p.shape, seed=i) for i, (name, p) in enumerate(PARAMETERS.items())}

    def cut(whole):
        return {name: local_part(tensor.detach(), PARAMETERS[name], MODEL, holder) for name, tensor in whole.items()}

    network = Network(groups, layout, cut(initial))
    units = [Unit(name="layers.0", module=network.layers[0], held=hold(LAYER, MODEL, layout))]
    units.append(Unit(name="root", module=network, held=hold(ROOT, MODEL, layout)))
    if layout.zero == 3:
        engine = FullySharded(units, groups, layout.zero_variant, torch.float64, torch.float64)
    else:
        engine = Buckets(units, groups, layout.zero, torch.float64)
    optimizer = AdamW(engine.shares, torch.float64, learning_rate=1e-2)
    expected, norms = one_device(layout.dp)
    mine = groups["dp_shard"].place + layout.dp_shard * groups["dp_replicate"].place
    collected = Collected()
    with Recorder(collected, groups.recorded()):
        for step in range(STEPS):
            ids, labels = (each[mine : mine + 1] for each in data(step, layout.dp))
            engine.begin_micro_batch(first=True, last=True)
            network(ids, labels, layout.dp * S).backward()
            engine.end_micro_batch()
            engine.finish_gradients()
            norm = gradient_norm(engine.shares, groups["world"])
            assert abs(norm / norms[step] - 1) < 1e-12, (norm, norms[step])
            optimizer.step()
            engine.publish_weights()
    whole = cut(expected)
    for share in engine.shares:
        close(share.weight, whole[share.name][share.first_row : share.first_row + share.weight.shape[0]])
    state = [e for e in collected.events if e.phase == "reduce" or (e.op == "all_gather" and e.phase != "optimizer")]
    return [(e.group.split(".")[0], e.op, e.payload_bytes // 8) for e in state if e.group.split(".")[0] in ("edp", "edp_replicate")]


LAYOUTS = {
    "ep=2 over dp_shard=2, two replicas": {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    "ep=2 of tp=2 x dp_shard=2 with sp": {"tp": 2, "sp": True, "dp_shard": 2, "ep": 2, "etp": 1},
    "ep=2 and etp=2 with sp": {"tp": 2, "sp": True, "dp_shard": 2, "ep": 2, "etp": 2},
    "dense state on one rank, experts on two": {"tp": 2, "sp": True, "dp_shard": 1, "ep": 1, "etp": 1},
}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_weights_after_two_steps(name: str, zero: int) -> None:
    layout = Layout(zero=zero, **LAYOUTS[name])
    run_ranks(train, layout.world_size, (layout,))


def test_experts_are_reduced_over_the_rest_of_their_fold() -> None:
    """Two local experts: 2 x 4 x 6 of each matrix and 2 x 6 of the bias: 108 elements."""
    degrees = LAYOUTS["ep=2 of tp=2 x dp_shard=2 with sp"]
    (sent, *_) = run_ranks(train, 4, (Layout(zero=0, **degrees),))
    assert sent == [("edp_replicate", "all_reduce", 108)] * STEPS
    (sent, *_) = run_ranks(train, 4, (Layout(zero=1, **degrees),))
    assert sent == [("edp", "reduce_scatter", 108)] * STEPS
    (sent, *_) = run_ranks(train, 4, (Layout(zero=3, **degrees),))
    assert sent == [("edp", "all_gather", 108), ("edp", "all_gather", 108), ("edp", "reduce_scatter", 108)] * STEPS
