"""Weights (or gradients, the maps being linear) from and to a Hugging Face state dict."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from meshwright.errors import Mistakes
from meshwright.runtime.reference.huggingface_sources import Sources, bloom_sources, gpt2_sources, llama_sources
from meshwright.spec.model import Model
from meshwright.spec.parameters import all_parameters

_NOT_PARAMETERS = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Endings of buffers that old checkpoints hold beside the weights."""


def from_huggingface(model: Model, state: Mapping[str, Tensor], file: str = "checkpoint") -> dict[str, Tensor]:
    """Our parameters by full name, from a state dict in memory or the tensors of a checkpoint's files.

    Raises:
        InputError: for every tensor that is missing, of another shape, or left over (a layer dropped in silence is another model).
    """
    state = _without_leftovers(model, state)
    sources = min(_candidates(model).values(), key=lambda s: len(_keys(s) - state.keys()))
    with Mistakes.of(file) as mistakes:
        for key in sorted(_keys(sources) - state.keys()):
            mistakes.add(key, None, f"a tensor of {model.name}", problem="is missing")
        for key in sorted(state.keys() - _keys(sources)):
            mistakes.add(
                key, tuple(state[key].shape), f"only tensors of {model.name}", "is the config of another model?", "is not in the model"
            )
    weights = {name: source.join([state[key] for key in source.keys]).contiguous() for name, source in sources.items()}
    with Mistakes.of(file) as mistakes:
        for name, parameter in all_parameters(model).items():
            if tuple(weights[name].shape) != parameter.shape:
                keys = sources[name].keys
                shown = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
                mistakes.add(shown, tuple(weights[name].shape), str(parameter.shape), problem=f"is not the shape of {name}")
    return weights


def to_huggingface(model: Model, weights: Mapping[str, Tensor], naming: str) -> dict[str, Tensor]:
    """The state dict that transformers reads. A tied head has no key of its own.

    Args:
        naming: "fused" (transformers in memory), "per_expert" or "mixtral" (on disk), "gpt_oss"; for dense models of Llama's shape
            any of these; "gpt2"; "bloom".

    Raises:
        InputError: if the naming does not fit the model.
    """
    candidates = _candidates(model)
    with Mistakes.of("to_huggingface") as mistakes:
        if naming not in candidates:
            mistakes.add("naming", naming, " or ".join(candidates))
    state: dict[str, Tensor] = {}
    for name, source in candidates[naming].items():
        state |= {key: part.contiguous() for key, part in zip(source.keys, source.split(weights[name]), strict=True)}
    return state


def _candidates(model: Model) -> dict[str, Sources]:
    """The namings that have a key for each parameter of this model."""
    if model.positions == "learned":
        return {"gpt2": gpt2_sources(model)}
    if model.positions == "alibi":
        return {"bloom": bloom_sources(model)}
    namings = ["gpt_oss", "fused"] if model.moe and model.moe.expert_bias else ["fused", "per_expert", "mixtral", "gpt_oss"]
    return {naming: llama_sources(model, naming) for naming in namings}


def _keys(sources: Sources) -> set[str]:
    return {key for source in sources.values() for key in source.keys}


def _without_leftovers(model: Model, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bare GPT-2 and BLOOM checkpoints get their prefix; buffers and the copies of a shared matrix go."""
    if "wte.weight" in state or "word_embeddings.weight" in state:
        state = {f"transformer.{key}": tensor for key, tensor in state.items()}
    copies = {"lm_head.weight"} if model.tied_embeddings else set()
    for index in range(model.num_layers, model.num_layers + model.mtp_layers):
        copies |= {f"model.layers.{index}.embed_tokens.weight", f"model.layers.{index}.shared_head.head.weight"}
    return {key: tensor for key, tensor in state.items() if key not in copies and not key.endswith(_NOT_PARAMETERS)}


__all__ = ["from_huggingface", "to_huggingface"]
