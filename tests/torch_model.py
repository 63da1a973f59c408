"""A dense Transformer as torch's own tools split it: DTensor tensor parallelism, loss_parallel, FSDP2.

The plan is the one that torch's tutorial and torchtitan use for Llama; weights are named and drawn as the runtime's reference does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from meshwright.runtime.reference.rope import rope_tables
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        a, D = model.attention, model.hidden_size
        self.head_dim = a.head_dim
        self.q = nn.Linear(D, a.num_heads * a.head_dim, bias=False)
        self.k = nn.Linear(D, a.num_kv_heads * a.head_dim, bias=False)
        self.v = nn.Linear(D, a.num_kv_heads * a.head_dim, bias=False)
        self.out = nn.Linear(a.num_heads * a.head_dim, D, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for projection in (self.q, self.k, self.v))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(out.transpose(1, 2).flatten(2))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Mlp(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden_size, model.ffn_size, bias=False)
        self.up = nn.Linear(model.hidden_size, model.ffn_size, bias=False)
        self.down = nn.Linear(model.ffn_size, model.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RmsNorm(model.hidden_size, model.norm_eps), RmsNorm(model.hidden_size, model.norm_eps)
        self.attention, self.mlp = Attention(model), Mlp(model)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    def __init__(self, model: Model, seq: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        self.layers = nn.ModuleList(Layer(model) for _ in range(model.num_layers))
        self.norm = RmsNorm(model.hidden_size, model.norm_eps)
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        tables = rope_tables(model, torch.arange(seq), seq, torch.get_default_dtype())
        assert tables is not None
        self.cos, self.sin = tables

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


def load(network: Transformer, weights: dict[str, Tensor], model: Model) -> None:
    """The runtime's packed matrices, taken apart."""
    a = model.attention
    heads = [a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim, a.num_kv_heads * a.head_dim]
    state = {"embedding.weight": weights["embedding.weight"], "norm.weight": weights["norm.weight"], "head.weight": weights["head.weight"]}
    for i in range(model.num_layers):
        of, to = f"layers.{i}.", f"layers.{i}."
        q, k, v = weights[of + "attention.qkv.weight"].split(heads)
        gate, up = weights[of + "mlp.gate_up.weight"].chunk(2)
        state |= {
            to + "attention.q.weight": q, to + "attention.k.weight": k, to + "attention.v.weight": v, to + "mlp.gate.weight": gate,
            to + "mlp.up.weight": up, to + "attention.out.weight": weights[of + "attention.out.weight"],
            to + "mlp.down.weight": weights[of + "mlp.down.weight"], to + "attention_norm.weight": weights[of + "attention.norm.weight"],
            to + "mlp_norm.weight": weights[of + "mlp.norm.weight"],
        }  # fmt: skip
    network.load_state_dict(state)


def packed_gradients(network: Transformer, model: Model) -> dict[str, Tensor]:
    """Whole gradients by the runtime's names, of what has one: a pipeline's stage has some."""

    def gradient(*names: str) -> Tensor | None:
        found = [network.get_parameter(f"{name}.weight").grad for name in names]
        if any(one is None for one in found):
            return None
        return torch.cat([one.full_tensor() if isinstance(one, DTensor) else one for one in found])

    result = {f"{name}.weight": gradient(name) for name in ("embedding", "norm", "head")}
    for i in range(model.num_layers):
        at = f"layers.{i}."
        result |= {
            at + "attention.qkv.weight": gradient(*(f"{at}attention.{part}" for part in "qkv")),
            at + "mlp.gate_up.weight": gradient(*(f"{at}mlp.{part}" for part in ("gate", "up"))),
            at + "attention.out.weight": gradient(at + "attention.out"), at + "mlp.down.weight": gradient(at + "mlp.down"),
            at + "attention.norm.weight": gradient(at + "attention_norm"), at + "mlp.norm.weight": gradient(at + "mlp_norm"),
        }  # fmt: skip
    return {name: found for name, found in result.items() if found is not None}


def parallelise(network: Transformer, layout: Layout, mesh: DeviceMesh) -> None:
    """Tensor parallelism over mesh["tp"], then FSDP2 over mesh["dp"]: a unit per layer, and the root."""
    if layout.tp > 1:
        _tensor_parallel(network, mesh["tp"], layout.sp)
    if layout.dp_shard > 1:
        for module in [*network.layers, network]:
            fully_shard(module, mesh=mesh["dp"])
            # sums, as the runtime has it: the loss is divided by the count of all tokens
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _tensor_parallel(network: Transformer, tp: DeviceMesh, sp: bool) -> None:
    stream = Shard(1) if sp else Replicate()
    root = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
    }
    layer = {
        "attention": PrepareModuleInput(input_layouts=(stream, None, None), desired_input_layouts=(Replicate(), None, None)),
        "mlp": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),)),
        **{f"attention.{part}": ColwiseParallel() for part in "qkv"},
        **{f"mlp.{part}": ColwiseParallel() for part in ("gate", "up")},
        "attention.out": RowwiseParallel(output_layouts=stream), "mlp.down": RowwiseParallel(output_layouts=stream),
    }  # fmt: skip
    if sp:
        root["norm"] = SequenceParallel()
        layer |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    parallelize_module(network, tp, root)
    for module in network.layers:
        parallelize_module(module, tp, layer)
