"""Which tensors of a Hugging Face checkpoint make up each of our parameters, family by family.

transformers fuses experts in memory (``mlp.experts.gate_up_proj``, three-dimensional) and stores them one by one on disk; both are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.spec import names
from meshwright.spec.model import Model
from meshwright.spec.parameters import Parameter, all_parameters


@dataclass(frozen=True)
class Source:
    """The checkpoint's keys for one parameter, and how their tensors become ours (``join``) and back (``split``)."""

    keys: tuple[str, ...]
    join: Callable[[list[Tensor]], Tensor]
    split: Callable[[Tensor], list[Tensor]]


Sources = dict[str, Source]


def llama_sources(model: Model, experts: str) -> Sources:
    """Llama's names, which Mistral, Qwen, Mixtral, DeepSeek and gpt-oss share outside their experts.

    experts: "fused" (transformers in memory), "per_expert" (Qwen and DeepSeek on disk), "mixtral" (on disk) or "gpt_oss".
    """
    found: Sources = {}
    for name, parameter in all_parameters(model).items():
        unit, inside = _unit_and_inside(name, parameter)
        if not unit:
            found[name] = _same(_LLAMA_ROOT[inside])
        elif parameter.module == names.EXPERTS:
            found[name] = _experts(f"model.{unit}", inside, model, experts)
        else:
            found[name] = _llama_layer(f"model.{unit}", parameter, model, experts)
    return found


def gpt2_sources(model: Model) -> Sources:
    """GPT-2: fused query-key-value as ours; its Conv1D matrices are [in, out]."""
    found: Sources = {}
    for name, parameter in all_parameters(model).items():
        unit, inside = _unit_and_inside(name, parameter)
        if not unit:
            found[name] = _same(_GPT2_ROOT[inside])
            continue
        key = f"transformer.{unit.replace('layers', 'h')}.{_GPT2_LAYER[parameter.module]}.{parameter.name}"
        found[name] = _transposed(key) if len(parameter.shape) == 2 else _same(key)
    return found


def bloom_sources(model: Model) -> Sources:
    """BLOOM: query, key and value rows alternate head by head."""
    a = model.attention
    found: Sources = {}
    for name, parameter in all_parameters(model).items():
        unit, inside = _unit_and_inside(name, parameter)
        if not unit:
            found[name] = _same(_BLOOM_ROOT[inside])
            continue
        key = f"transformer.{unit.replace('layers', 'h')}.{_BLOOM_LAYER[parameter.module]}.{parameter.name}"
        found[name] = _qkv_by_head(key, a.num_heads, a.head_dim) if parameter.module == names.QKV else _same(key)
    return found


_LLAMA_ROOT = {
    f"{names.EMBEDDING}.weight": "model.embed_tokens.weight",
    f"{names.NORM}.weight": "model.norm.weight",
    f"{names.HEAD}.weight": "lm_head.weight",
}
_GPT2_ROOT = {
    f"{names.EMBEDDING}.weight": "transformer.wte.weight",
    f"{names.POSITIONS}.weight": "transformer.wpe.weight",
    f"{names.NORM}.weight": "transformer.ln_f.weight",
    f"{names.NORM}.bias": "transformer.ln_f.bias",
    f"{names.HEAD}.weight": "lm_head.weight",
}
_GPT2_LAYER = {
    names.ATTENTION_NORM: "ln_1",
    names.QKV: "attn.c_attn",
    names.OUT: "attn.c_proj",
    names.MLP_NORM: "ln_2",
    names.GATE_UP: "mlp.c_fc",
    names.DOWN: "mlp.c_proj",
}
_BLOOM_ROOT = {
    f"{names.EMBEDDING}.weight": "transformer.word_embeddings.weight",
    f"{names.EMBEDDING_NORM}.weight": "transformer.word_embeddings_layernorm.weight",
    f"{names.EMBEDDING_NORM}.bias": "transformer.word_embeddings_layernorm.bias",
    f"{names.NORM}.weight": "transformer.ln_f.weight",
    f"{names.NORM}.bias": "transformer.ln_f.bias",
    f"{names.HEAD}.weight": "lm_head.weight",
}
_BLOOM_LAYER = {
    names.ATTENTION_NORM: "input_layernorm",
    names.QKV: "self_attention.query_key_value",
    names.OUT: "self_attention.dense",
    names.MLP_NORM: "post_attention_layernorm",
    names.GATE_UP: "mlp.dense_h_to_4h",
    names.DOWN: "mlp.dense_4h_to_h",
}
_LLAMA_LAYER = {
    names.ATTENTION_NORM: "input_layernorm",
    names.OUT: "self_attn.o_proj",
    names.Q_NORM: "self_attn.q_norm",
    names.K_NORM: "self_attn.k_norm",
    names.Q_DOWN: "self_attn.q_a_proj",
    names.Q_LATENT_NORM: "self_attn.q_a_layernorm",
    names.KV_DOWN: "self_attn.kv_a_proj_with_mqa",
    names.KV_LATENT_NORM: "self_attn.kv_a_layernorm",
    names.KV_UP: "self_attn.kv_b_proj",
    names.MLP_NORM: "post_attention_layernorm",
    names.DOWN: "mlp.down_proj",
    names.MOE_NORM: "post_attention_layernorm",
    names.SHARED_DOWN: "mlp.shared_experts.down_proj",
}
_MTP_NORM = {"weight_hidden": "hnorm", "weight_embedding": "enorm", "weight_head": "shared_head.norm"}
_ROUTER = {"mixtral": "block_sparse_moe.gate", "gpt_oss": "mlp.router"}


def _llama_layer(unit: str, parameter: Parameter, model: Model, experts: str) -> Source:
    module, name, a = parameter.module, parameter.name, model.attention
    if module == names.QKV:
        sizes = [heads * a.head_dim for heads in (a.num_heads, a.num_kv_heads, a.num_kv_heads)]
        return _stacked([f"{unit}.self_attn.{which}_proj.{name}" for which in "qkv"], sizes)
    if module in (names.GATE_UP, names.SHARED_GATE_UP):
        mlp = "mlp" if module == names.GATE_UP else "mlp.shared_experts"
        return _stacked([f"{unit}.{mlp}.{which}_proj.{name}" for which in ("gate", "up")], [parameter.shape[0] // 2] * 2)
    if module == names.SINKS:
        return _same(f"{unit}.self_attn.sinks")
    if module == names.Q_UP:
        direct = a.mla is not None and a.mla.q_lora_rank is None
        return _same(f"{unit}.self_attn.{'q_proj' if direct else 'q_b_proj'}.{name}")
    if module == names.ROUTER:
        name = "e_score_correction_bias" if name == "selection_bias" else name
        return _same(f"{unit}.{_ROUTER.get(experts, 'mlp.gate')}.{name}")
    if module == names.MTP_NORM:
        return _same(f"{unit}.{_MTP_NORM[name]}.weight")
    if module == names.MTP_PROJECTION:
        return _halves_swapped(f"{unit}.eh_proj.weight")
    return _same(f"{unit}.{_LLAMA_LAYER[module]}.{name}")


def _experts(unit: str, inside: str, model: Model, experts: str) -> Source:
    """inside: ``moe.experts.weight`` (gate and up) or ``.down_weight``, and the same for biases."""
    assert model.moe is not None
    E, name = model.moe.num_experts, inside.removeprefix(names.EXPERTS + ".")
    down = name.startswith("down_")
    if experts in ("fused", "gpt_oss"):
        key = f"{unit}.mlp.experts.{'down' if down else 'gate_up'}_proj{'_bias' if name.endswith('bias') else ''}"
        return _fused_experts(key, E) if experts == "fused" else _gpt_oss_experts(key, E, down)
    folder = "block_sparse_moe" if experts == "mixtral" else "mlp"
    gate_word, up_word, down_word = {"mixtral": ("w1", "w3", "w2")}.get(experts, ("gate_proj", "up_proj", "down_proj"))
    words = [down_word] if down else [gate_word, up_word]
    keys = [f"{unit}.{folder}.experts.{e}.{word}.weight" for e in range(E) for word in words]
    rows = model.hidden_size if down else model.moe.expert_ffn_size
    return _stacked(keys, [rows] * len(keys))


def _unit_and_inside(name: str, parameter: Parameter) -> tuple[str, str]:
    inside = f"{parameter.module}.{parameter.name}"
    return name.removesuffix(inside).removesuffix("."), inside


def _same(key: str) -> Source:
    return Source((key,), lambda parts: parts[0], lambda ours: [ours])


def _stacked(keys: list[str], rows: list[int]) -> Source:
    """One below the other, each with this many rows."""
    return Source(tuple(keys), lambda parts: torch.cat(parts), lambda ours: list(ours.split(rows)))


def _transposed(key: str) -> Source:
    return Source((key,), lambda parts: parts[0].T, lambda ours: [ours.T])


def _halves_swapped(key: str) -> Source:
    """eh_proj reads [embedding; hidden] in checkpoints, [hidden; embedding] in the report."""

    def swapped(t: Tensor) -> Tensor:
        return torch.cat(t.chunk(2, dim=1)[::-1], dim=1)

    return Source((key,), lambda parts: swapped(parts[0]), lambda ours: [swapped(ours)])


def _qkv_by_head(key: str, heads: int, head_dim: int) -> Source:
    """[N, 3, H, ...] in the checkpoint, [3, N, H, ...] here."""

    def join(parts: list[Tensor]) -> Tensor:
        return parts[0].unflatten(0, (heads, 3, head_dim)).transpose(0, 1).flatten(0, 2)

    def split(ours: Tensor) -> list[Tensor]:
        return [ours.unflatten(0, (3, heads, head_dim)).transpose(0, 1).flatten(0, 2)]

    return Source((key,), join, split)


def _fused_experts(key: str, num_experts: int) -> Source:
    return Source((key,), lambda parts: parts[0].flatten(0, 1), lambda ours: [ours.unflatten(0, (num_experts, -1))])


def _gpt_oss_experts(key: str, num_experts: int, down: bool) -> Source:
    """[E, in, out] in the checkpoint, with gate and up in alternate columns; [E out, in] here, gate above up."""

    def join(parts: list[Tensor]) -> Tensor:
        rows = parts[0] if parts[0].dim() == 2 else parts[0].transpose(1, 2)  # [E, out, ...]
        rows = rows if down else torch.cat((rows[:, 0::2], rows[:, 1::2]), dim=1)
        return rows.flatten(0, 1)

    def split(ours: Tensor) -> list[Tensor]:
        rows = ours.unflatten(0, (num_experts, -1))
        rows = rows if down else torch.stack(rows.chunk(2, dim=1), dim=2).flatten(1, 2)
        return [rows if rows.dim() == 2 else rows.transpose(1, 2)]

    return Source((key,), join, split)
