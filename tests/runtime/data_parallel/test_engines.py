"""Every ZeRO stage against one device: weights after three AdamW steps with clipping, the gradient norm, and what is sent.

A small network with everything that data parallelism must get right: shapes that no group divides, tokens that do not count
(other numbers on each rank and in each micro-batch), a norm whose gradient is a summand over tp under sp, and one kv head
that two tp ranks hold.

D = 6, N = 2 heads of H = 2, K = 1 kv head, F = 10, V = 9 (10 with tp = 2), S = 4 tokens, 2 layers.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meshwright.recording.events import Event
from meshwright.runtime.cut import Holder, Place, local_part
from meshwright.runtime.data_parallel.buckets import Buckets
from meshwright.runtime.data_parallel.fully_sharded import FullySharded
from meshwright.runtime.data_parallel.shares import AdamW, clip_scale, count_tokens, gradient_norm
from meshwright.runtime.data_parallel.units import Unit, add_parameters, hold
from meshwright.runtime.launch import run_ranks
from meshwright.runtime.parallel.linear import column_linear, row_linear, sum_over_copies
from meshwright.runtime.parallel.vocabulary import IGNORE_INDEX, cross_entropy, embedding
from meshwright.runtime.recorder import Collected, Recorder
from meshwright.runtime.scope import at
from meshwright.spec.layout import Layout
from meshwright.spec.model import Attention, LayerKind, Model
from meshwright.spec.parameters import Parameter
from runtime.parallel.sharded import close, groups_of, random

pytestmark = pytest.mark.dist

D, N, H, FFN, V, S, LAYERS, MICRO_BATCHES, STEPS, CLIP = 6, 2, 2, 10, 9, 4, 2, 2, 3, 0.3
MODEL = Model(
    name="small", vocab_size=V, hidden_size=D, ffn_size=FFN, layers=(LayerKind(),) * LAYERS, activation="relu",
    attention=Attention(num_heads=N, num_kv_heads=1, head_dim=H),
)  # fmt: skip
LAYER = (
    Parameter("mlp.norm", "weight", (D,)),
    Parameter("attention.qkv", "weight", ((N + 2) * H, D), "qkv"),
    Parameter("attention.out", "weight", (D, N * H), "columns"),
    Parameter("mlp.gate_up", "weight", (FFN, D), "rows"),
    Parameter("mlp.down", "weight", (D, FFN), "columns"),
)
ROOT = (Parameter("embedding", "weight", (V, D), "vocab"), Parameter("norm", "weight", (D,)), Parameter("head", "weight", (V, D), "vocab"))


def whole_weights() -> dict[str, torch.Tensor]:
    named = [(f"layers.{i}.{p.module}.{p.name}", p) for i in range(LAYERS) for p in LAYER] + [(f"{p.module}.{p.name}", p) for p in ROOT]
    return {name: random(*p.shape, seed=i) / p.shape[-1] ** 0.5 for i, (name, p) in enumerate(named)}


def data(step: int, dp: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids, labels [dp x micro-batches, S]; sequence i of the step has i mod S labels that do not count."""
    generator = torch.Generator().manual_seed(step)
    ids, labels = torch.randint(0, V, (2, dp * MICRO_BATCHES, S), generator=generator)
    for sequence in range(len(labels)):
        labels[sequence, : sequence % S] = IGNORE_INDEX
    return ids, labels


def mix(q, k, v):
    """Stands for attention: elementwise per head, the one kv head read by all. [B, S, n H], [B, S, H] to [B, S, n H]."""
    return (q.unflatten(-1, (-1, H)) * k[..., None, :] + v[..., None, :]).flatten(-2).tanh()


def one_device(layout: Layout) -> tuple[dict, list[float]]:
    weights = {name: w.requires_grad_() for name, w in whole_weights().items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-2, eps=1e-6, weight_decay=0.01, foreach=False)
    norms = []
    for step in range(STEPS):
        ids, labels = data(step, layout.dp)
        x = F.embedding(ids, weights["embedding.weight"])
        for i in range(LAYERS):
            w = {p.module: weights[f"layers.{i}.{p.module}.{p.name}"] for p in LAYER}
            y = x * w["mlp.norm"]
            q, k, v = F.linear(y, w["attention.qkv"]).split((N * H, H, H), -1)
            x = x + F.linear(mix(q, k, v), w["attention.out"])
            x = x + F.linear(F.linear(x * w["mlp.norm"], w["mlp.gate_up"]).relu(), w["mlp.down"])
        logits = F.linear(x * weights["norm.weight"], weights["head.weight"])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
        (loss / (labels != IGNORE_INDEX).sum()).backward()
        norms.append(float(nn.utils.clip_grad_norm_(weights.values(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    return weights, norms


class Layer(nn.Module):
    def __init__(self, groups, layout: Layout, local: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.groups, self.layout = groups, layout
        add_parameters(self, local)

    def forward(self, x):
        tp, sp = self.groups["tp"], self.layout.sp
        qkv, norm = self.attention.qkv.weight, self.mlp.norm.weight
        first = N * H // tp.size
        if self.layout.zero >= 3:  # zero=0 to 2: the buckets sum the copies
            (qkv,) = sum_over_copies([qkv], first, self.groups["kv"])
        q, k, v = column_linear(x * norm, qkv, None, tp, sp).split((first, H, H), -1)
        x = x + row_linear(mix(q, k, v), self.attention.out.weight, None, tp, sp)
        hidden = column_linear(x * norm, self.mlp.gate_up.weight, None, tp, sp).relu()
        return x + row_linear(hidden, self.mlp.down.weight, None, tp, sp)


class Network(nn.Module):
    def __init__(self, groups, layout: Layout, local: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.groups, self.layout = groups, layout
        names = {f"layers.{i}.": i for i in range(LAYERS)}
        parts = [{n.removeprefix(prefix): w for n, w in local.items() if n.startswith(prefix)} for prefix in names]
        self.layers = nn.ModuleList(Layer(groups, layout, part) for part in parts)
        add_parameters(self, {n: w for n, w in local.items() if not n.startswith("layers.")})

    def forward(self, ids, labels, count):
        tp, sp = self.groups["tp"], self.layout.sp
        x = embedding(ids, self.embedding.weight, tp, sp)
        for layer in self.layers:
            x = layer(x)
        logits = column_linear(x * self.norm.weight, self.head.weight, None, tp, sp)
        return cross_entropy(logits, labels, V, tp) / count


def train(layout: Layout) -> tuple[list[Event], list[Event]]:
    """Three steps on this layout, compared with one device; the events of the first step, and of its end."""
    groups = groups_of(layout, kv_heads=1)
    tp = groups["tp"]
    holder = Holder(tp=Place(tp.place, tp.size), padded_vocab=V + V % tp.size)
    parameters = {f"layers.{i}.{p.module}.{p.name}": p for i in range(LAYERS) for p in LAYER} | {f"{p.module}.{p.name}": p for p in ROOT}

    def cut(whole: dict) -> dict:
        return {name: local_part(tensor.detach(), parameters[name], MODEL, holder) for name, tensor in whole.items()}

    network = Network(groups, layout, cut(whole_weights()))
    units = [Unit(name=f"layers.{i}", module=layer, held=hold(LAYER, MODEL, layout)) for i, layer in enumerate(network.layers)]
    units.append(Unit(name="root", module=network, held=hold(ROOT, MODEL, layout)))
    if layout.zero == 3:
        engine = FullySharded(units, groups, layout.zero_variant, torch.float64, torch.float64)
    else:
        engine = Buckets(units, groups, layout.zero, torch.float64)
    optimizer = AdamW(engine.shares, torch.float64, learning_rate=1e-2)
    expected, norms = one_device(layout)
    collected = Collected()
    rank_of_data = groups["dp_shard"].place + layout.dp_shard * groups["dp_replicate"].place
    with Recorder(collected, groups.recorded()):
        for step in range(STEPS):
            ids, labels = data(step, layout.dp)
            own = slice(rank_of_data * MICRO_BATCHES, (rank_of_data + 1) * MICRO_BATCHES)
            count = count_tokens((labels[own] != IGNORE_INDEX).sum(), groups["dp_cp"])
            for index in range(MICRO_BATCHES):
                engine.begin_micro_batch(first=index == 0, last=index == MICRO_BATCHES - 1)
                with at(step=step, micro_batch=index, phase="forward"):
                    loss = network(ids[own][index : index + 1], labels[own][index : index + 1], count)
                with at(step=step, micro_batch=index, phase="backward_input"):
                    loss.backward()
                    engine.end_micro_batch()
            with at(step=step):
                engine.finish_gradients()
                norm = gradient_norm(engine.shares, groups["world"])
                optimizer.step(clip_scale(norm, CLIP))
                engine.publish_weights()
            assert abs(norm / norms[step] - 1) < 1e-12, (norm, norms[step])
    whole = cut(expected)
    for share in engine.shares:
        rows = slice(share.first_row, share.first_row + share.weight.shape[0])
        close(share.weight, whole[share.name][rows])
    if layout.zero < 3:
        for name, parameter in network.named_parameters():
            close(parameter, whole[name])
    return [event for event in collected.events if event.step in (0, None)]


VARIANTS = ["zero=0", "zero=1", "zero=2", "zero=3", "zero=3:local", "zero=3:keep"]


def layout_of(zero: str, **degrees) -> Layout:
    stage, _, variant = zero.removeprefix("zero=").partition(":")
    return Layout(zero=int(stage), zero_variant=variant, **degrees)


@pytest.mark.parametrize("zero", VARIANTS)
def test_two_replicas_of_which_each_is_sharded_over_two(zero: str) -> None:
    run_ranks(train, 4, (layout_of(zero, dp_replicate=2, dp_shard=2),))


@pytest.mark.parametrize("zero", VARIANTS)
def test_with_sequence_parallelism(zero: str) -> None:
    run_ranks(train, 4, (layout_of(zero, tp=2, sp=True, dp_shard=2),))


def test_three_shards_of_rows_that_three_does_not_divide() -> None:
    for zero in VARIANTS[1:4]:
        run_ranks(train, 3, (layout_of(zero, dp_shard=3),))


def test_without_any_data_parallelism() -> None:
    for zero in ("zero=0", "zero=2", "zero=3"):
        run_ranks(train, 2, (layout_of(zero, tp=2),))


# Elements of a unit on one of two tp ranks: norm 6, qkv 6 rows of 6, out 6 x 2, gate_up 5 x 6, down 6 x 5: 114; the root's norm 6, and 5
# rows of 6 each of embedding and head: 66. On two shards the 5 rows of gate_up, embedding and head take 6.
LAYER_NUMEL, ROOT_NUMEL, LAYER_PADDED, ROOT_PADDED, PARTIAL, KV = 114, 66, 120, 78, 6, 4 * 6


def gradient_traffic(events: list[Event], step: int | None = 0) -> list[tuple]:
    """What is sent over other axes than tp, beside the token count; and over tp the sums at the end."""
    wanted = [e for e in events if e.step == step and (not e.group.startswith("tp") or e.phase == "reduce")]
    return [(e.group.split(".")[0], e.op, e.module, e.payload_bytes // 8) for e in wanted]


def test_what_each_stage_sends_in_a_step() -> None:
    sums = [("tp", "all_reduce", unit, PARTIAL) for unit in ("layers.0", "layers.1", "root")]
    halved = [("tp", "all_reduce", unit, PARTIAL // 2) for unit in ("layers.0", "layers.1", "root")]
    norm = [("world", "all_reduce", "gradient_norm", 1)]
    backward = [("layers.1", LAYER_NUMEL, LAYER_PADDED), ("layers.0", LAYER_NUMEL, LAYER_PADDED), ("root", ROOT_NUMEL, ROOT_PADDED)]

    def scatters() -> list:
        found = []
        for unit, _, padded in backward:
            found += [("kv", "all_reduce", f"{unit}.attention.qkv", KV)] * (unit != "root")
            found.append(("fsdp", "reduce_scatter", unit, padded))
        return found

    gathers = [("fsdp", "all_gather", unit, padded) for unit, _, padded in [backward[1], backward[0], backward[2]]]
    (events, *_) = run_ranks(train, 4, (layout_of("zero=0", tp=2, sp=True, dp_shard=2),))
    reductions = []
    for unit, numel, _ in backward:
        reductions += [("kv", "all_reduce", f"{unit}.attention.qkv", KV)] * (unit != "root")
        reductions.append(("dp_cp", "all_reduce", unit, numel))
    assert gradient_traffic(events) == reductions + sums + norm
    (events, *_) = run_ranks(train, 4, (layout_of("zero=1", tp=2, sp=True, dp_shard=2),))
    assert gradient_traffic(events) == scatters() + halved + norm + gathers
    (events, *_) = run_ranks(train, 4, (layout_of("zero=2", tp=2, sp=True, dp_shard=2),))
    assert gradient_traffic(events) == scatters() * MICRO_BATCHES + halved + norm + gathers
    tokens = [event for event in events if event.module == "token_count"]
    assert len(tokens) == STEPS and {(e.group, e.op, e.dtype, e.payload_bytes) for e in tokens} <= {
        ("dp_cp.0", "all_reduce", "int64", 8), ("dp_cp.1", "all_reduce", "int64", 8)
    }  # fmt: skip


def test_what_fsdp_sends_in_each_micro_batch() -> None:
    forward = [
        ("fsdp", "all_gather", unit, numel)
        for unit, numel in (("root", ROOT_PADDED), ("layers.0", LAYER_PADDED), ("layers.1", LAYER_PADDED))
    ]
    again = [("fsdp", "all_gather", "layers.1", LAYER_PADDED), ("fsdp", "all_gather", "layers.0", LAYER_PADDED)]
    scatter = [
        ("fsdp", "reduce_scatter", unit, numel)
        for unit, numel in (("layers.1", LAYER_PADDED), ("layers.0", LAYER_PADDED), ("root", ROOT_PADDED))
    ]
    (events, *_) = run_ranks(train, 4, (layout_of("zero=3", tp=2, sp=True, dp_shard=2),))
    assert [fact for fact in gradient_traffic(events) if fact[0] == "fsdp"] == (forward + again + scatter) * MICRO_BATCHES
    assert sum(fact[0] == "kv" for fact in gradient_traffic(events)) == LAYERS * MICRO_BATCHES
    (events, *_) = run_ranks(train, 4, (layout_of("zero=3:local", tp=2, sp=True, dp_shard=2),))
    assert [fact for fact in gradient_traffic(events) if fact[0] == "fsdp"] == forward + again + forward + again + scatter
    (events, *_) = run_ranks(train, 4, (layout_of("zero=3:keep", tp=2, sp=True, dp_shard=2),))
    assert [fact for fact in gradient_traffic(events) if fact[0] == "fsdp"] == forward + scatter


def test_replicas_are_summed_once_per_step() -> None:
    for zero in ("zero=1", "zero=2", "zero=3"):
        (events, *_) = run_ranks(train, 4, (layout_of(zero, dp_replicate=2, dp_shard=2),))
        replicas = [fact for fact in gradient_traffic(events) if fact[0] == "dp_replicate"]
        # one rank of tp: norm 6, qkv 8 x 6, out 6 x 4, gate_up 10 x 6, down 6 x 10: 198; root 6 and twice 9 (padded 10) x 6: 126
        assert sorted(fact[3] for fact in replicas) == [63, 99, 99]
