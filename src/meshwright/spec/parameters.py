"""Every parameter of a model by module, name and global shape, and how tensor parallelism may cut it.

Shapes are [out, in] as in torch's Linear. Query, key and value rows are one matrix, gate and up rows are one matrix, and
the experts of a layer are one two-dimensional matrix each way (the expert is the slow part of dim 0), so that sharding on
dim 0 stays even with one expert per rank. Hugging Face splits them on disk; the sums are the same.

Letters: D model, F ffn, N query heads, K kv heads, H head dim, V vocab, E experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from meshwright.spec import names
from meshwright.spec.model import LayerKind, Model

Cut = Literal["whole", "rows", "columns", "qkv", "vocab", "expert_rows", "expert_columns", "expert_whole"]
"""How tp may cut a parameter.

whole: every tp rank holds all of it. rows, columns: dim 0 or dim 1 over tp. qkv: dim 0 over tp by head, key and value
heads replicated where there are fewer of them than ranks. vocab: dim 0 over tp, padded, if the vocabulary is cut.
expert_*: dim 0 over ep by expert, and inside an expert over etp by row or by column (whole: not at all).
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter tensor.

    Attributes:
        module: its module inside the unit (spec/names.py). name: "weight" or "bias".
        shape: global and unpadded. cut: see Cut.
        trained: False for buffers that move by other means than a gradient (the routers' selection bias).
        by_head: its gradient is a sum over heads, hence partial over tp even without sp (q/k norms).
        parts: equal pieces along dim 0 (of each expert) that are cut one by one, so that a rank's rows of gate and of up
            belong together: 2 for gate_up, else 1.
    """

    module: str
    name: str
    shape: tuple[int, ...]
    cut: Cut = "whole"
    trained: bool = True
    by_head: bool = False
    parts: int = 1

    @property
    def size(self) -> int:
        return prod(self.shape)


@lru_cache(maxsize=256)
def embedding_parameters(model: Model) -> tuple[Parameter, ...]:
    """Token table, learned positions, embedding norm."""
    D = model.hidden_size
    found = [Parameter(names.EMBEDDING, "weight", (model.vocab_size, D), "vocab")]
    if model.positions == "learned":
        found.append(Parameter(names.POSITIONS, "weight", (model.max_positions, D)))
    if model.embedding_norm:
        found += _norm(model, names.EMBEDDING_NORM, D)
    return tuple(found)


@lru_cache(maxsize=256)
def head_parameters(model: Model, tied_copy: bool = False) -> tuple[Parameter, ...]:
    """Final norm and head; a tied head has a matrix of its own only where it is a copy on another stage."""
    D = model.hidden_size
    found = _norm(model, names.NORM, D)
    if not model.tied_embeddings or tied_copy:
        found.append(Parameter(names.HEAD, "weight", (model.vocab_size, D), "vocab"))
    return tuple(found)


@lru_cache(maxsize=256)
def layer_parameters(model: Model, kind: LayerKind) -> tuple[Parameter, ...]:
    """One decoder layer."""
    mixer = _mla_parameters(model) if model.attention.mla else _attention_parameters(model)
    return (*mixer, *(_moe_parameters(model) if kind.moe else _mlp_parameters(model)))


@lru_cache(maxsize=256)
def mtp_parameters(model: Model) -> tuple[Parameter, ...]:
    """One multi-token-prediction layer beside its decoder layer: two norms and the projection of [2D] to [D].

    DeepSeek-V3 report (arXiv 2412.19437), section 2.2: M_k and the two RMSNorms; embedding and head are shared.
    Its own final norm before the shared head is counted here too.
    """
    D = model.hidden_size
    norms = [Parameter(names.MTP_NORM, f"weight_{which}", (D,)) for which in ("hidden", "embedding", "head")]
    return (*norms, Parameter(names.MTP_PROJECTION, "weight", (D, 2 * D)))


def mtp_kind(model: Model) -> LayerKind:
    """The decoder layer inside a multi-token-prediction layer is of the last layer's kind."""
    return model.layers[-1]


def all_parameters(model: Model, with_mtp: bool = True) -> dict[str, Parameter]:
    """Every parameter by its full name (``layers.3.attention.qkv.weight``), in the order of the forward pass.

    Decoder layer i is the unit ``layers.i``; multi-token-prediction layer k is ``layers.{L + k}``.
    """
    found = {_full_name(p): p for p in embedding_parameters(model)}
    for index, kind in enumerate(model.layers):
        found |= {_full_name(p, names.layer(index)): p for p in layer_parameters(model, kind)}
    found |= {_full_name(p): p for p in head_parameters(model)}
    for index in range(model.num_layers, model.num_layers + (model.mtp_layers if with_mtp else 0)):
        of_layer = mtp_parameters(model) + layer_parameters(model, mtp_kind(model))
        found |= {_full_name(p, names.layer(index)): p for p in of_layer}
    return found


def parameter_count(model: Model, with_mtp: bool = False) -> int:
    """All trained parameters of the model, unpadded; a tied head counts once.

    The routers' selection bias is a buffer and not counted, as transformers does; nor are MTP layers unless asked for.
    """
    total = _count(embedding_parameters(model)) + _count(head_parameters(model))
    total += sum(_count(layer_parameters(model, kind)) * model.layers.count(kind) for kind in model.kinds)
    if with_mtp and model.mtp_layers:
        total += model.mtp_layers * (_count(mtp_parameters(model)) + _count(layer_parameters(model, mtp_kind(model))))
    return total


def active_parameter_count(model: Model) -> int:
    """Parameters that one token meets, MTP layers left out: of the experts only the top k."""
    if model.moe is None:
        return parameter_count(model)
    idle = model.moe.num_experts - model.moe.top_k
    experts = [p for p in _moe_parameters(model) if p.cut.startswith("expert")]
    per_expert = _count(experts) // model.moe.num_experts
    return parameter_count(model) - idle * per_expert * sum(kind.moe for kind in model.layers)


def _full_name(parameter: Parameter, unit: str = "") -> str:
    name = f"{parameter.module}.{parameter.name}"
    return f"{unit}.{name}" if unit else name


def _count(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.size for parameter in parameters if parameter.trained)


def _norm(model: Model, module: str, width: int) -> list[Parameter]:
    found = [Parameter(module, "weight", (width,))]
    if model.norm == "layernorm":
        found.append(Parameter(module, "bias", (width,)))
    return found


def _linear(module: str, rows: int, columns: int, cut: Cut, bias: bool, parts: int = 1) -> list[Parameter]:
    """A matrix and perhaps its bias; the bias of a column-cut matrix is added after the sum, so every rank has all of it."""
    found = [Parameter(module, "weight", (rows, columns), cut, parts=parts)]
    if bias:
        bias_cut: Cut = {"columns": "whole", "expert_columns": "expert_whole"}.get(cut, cut)  # type: ignore[assignment]
        found.append(Parameter(module, "bias", (rows,), bias_cut, parts=parts))
    return found


def _attention_parameters(model: Model) -> list[Parameter]:
    a, D = model.attention, model.hidden_size
    N, K, H = a.num_heads, a.num_kv_heads, a.head_dim
    found = _norm(model, names.ATTENTION_NORM, D)
    found += _linear(names.QKV, (N + 2 * K) * H, D, "qkv", a.qkv_bias)
    if a.qk_norm:
        found += [Parameter(module, "weight", (H,), by_head=True) for module in (names.Q_NORM, names.K_NORM)]
    if a.sinks:
        found.append(Parameter(names.SINKS, "weight", (N,), "rows"))
    return found + _linear(names.OUT, D, N * H, "columns", a.out_bias)


def _mla_parameters(model: Model) -> list[Parameter]:
    """DeepSeek-V2 (arXiv 2405.04434), section 2.1.2: W^DQ, W^UQ, W^DKV with W^KR, W^UK with W^UV, W^O.

    The down projections are small and held whole by every tp rank; the up projections are cut by head.
    """
    a, D = model.attention, model.hidden_size
    mla = a.mla
    assert mla is not None
    N, q_rows = a.num_heads, a.num_heads * mla.qk_head_dim
    found = _norm(model, names.ATTENTION_NORM, D)
    if mla.q_lora_rank is None:
        found += _linear(names.Q_UP, q_rows, D, "rows", False)
    else:
        found += _linear(names.Q_DOWN, mla.q_lora_rank, D, "whole", a.qkv_bias)
        found.append(Parameter(names.Q_LATENT_NORM, "weight", (mla.q_lora_rank,)))
        found += _linear(names.Q_UP, q_rows, mla.q_lora_rank, "rows", False)
    found += _linear(names.KV_DOWN, mla.kv_lora_rank + mla.qk_rope_head_dim, D, "whole", a.qkv_bias)
    found.append(Parameter(names.KV_LATENT_NORM, "weight", (mla.kv_lora_rank,)))
    found += _linear(names.KV_UP, N * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank, "rows", False)
    return found + _linear(names.OUT, D, N * mla.v_head_dim, "columns", a.out_bias)


def _mlp_parameters(model: Model) -> list[Parameter]:
    D, F = model.hidden_size, model.ffn_size
    parts = 2 if model.gated else 1
    found = _norm(model, names.MLP_NORM, D)
    found += _linear(names.GATE_UP, parts * F, D, "rows", model.mlp_bias, parts)
    return found + _linear(names.DOWN, D, F, "columns", model.mlp_bias)


def _moe_parameters(model: Model) -> list[Parameter]:
    moe, D = model.moe, model.hidden_size
    assert moe is not None
    E, F, parts = moe.num_experts, moe.expert_ffn_size, 2 if model.gated else 1
    found = _norm(model, names.MOE_NORM, D)
    found += _linear(names.ROUTER, E, D, "whole", moe.router_bias)
    if moe.selection_bias:
        found.append(Parameter(names.ROUTER, "selection_bias", (E,), trained=False))
    found += _linear(names.EXPERTS, E * parts * F, D, "expert_rows", moe.expert_bias, parts)
    down = _linear(names.EXPERTS, E * D, F, "expert_columns", moe.expert_bias)
    found += [Parameter(p.module, f"down_{p.name}", p.shape, p.cut) for p in down]
    if moe.shared_ffn_size:
        found += _linear(names.SHARED_GATE_UP, parts * moe.shared_ffn_size, D, "rows", False, parts)
        found += _linear(names.SHARED_DOWN, D, moe.shared_ffn_size, "columns", False)
    return found
