"""The model of a published run: from the catalog where the row's label and shape agree with it, else from the row's columns."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from meshwright.catalog import list_names
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model import Attention, LayerKind, Model, Moe
from meshwright.spec.parameters import parameter_count
from meshwright.validate.runs import Run, Unjudgeable

ASSUMED_VOCAB = 51_200
"""GPT-2's vocabulary padded for tensor parallelism, as Megatron-LM's papers print it (arXiv 2104.04473, section 5)."""

ASSUMED_HEAD_DIM = 96
"""Between the 64 of small and the 128 of large models, for rows that print no number of heads."""

MOST_LAYERS = 10_000
"""The deepest published Transformers have some 1,000 layers (DeepNet, arXiv 2203.00555)."""

UNGATED = r"\bgpt(?!-?oss)|mpt|opt|bloom|megatron|turing|mt-nlg|falcon|transformer layer"
"""Families with one up projection, LayerNorm and, but for BLOOM and MPT, learned positions; the rest are Llama's children."""


def model_of(run: Run) -> tuple[Model, list[str]]:
    """The model, and what had to be assumed of it.

    Raises:
        Unjudgeable: the shape is not printed, or of a kind that there is no model of.
    """
    if run.says(r"mamba|hybrid|nemotron-?h|qwen3-?next|ssm|\bbert\b|\bt5\b|vision|diffusion", "model", "arch"):
        raise Unjudgeable("not a decoder-only Transformer")
    known = _from_catalog(run)
    return (known, []) if known is not None else _from_columns(run)


@lru_cache(maxsize=64)
def _catalog_model(name: str) -> Model:
    return resolve_model(name)


def _plain(label: str) -> str:
    return re.sub(r"[^a-z0-9]", "", label.lower())


def _from_catalog(run: Run) -> Model | None:
    """The entry whose name the label begins with, if layers, width and experts are its own (a run may cut layers off)."""
    label = _plain(run.text("model"))
    names = sorted(list_names("models"), key=len, reverse=True)
    name = next((name for name in names if label.startswith(_plain(name))), None)
    if name is None:
        return None
    model = _catalog_model(name)
    same = model.hidden_size == run.whole("hidden", model.hidden_size) and len(model.layers) == run.whole("layers", len(model.layers))
    if not same or (model.moe is not None) != run.has("experts"):
        return None
    if model.mtp_layers and run.says(r"w/o mtp|without mtp|no mtp", "notes", "impl_notes", "model"):
        return replace(model, mtp_layers=0)
    return model


def _from_columns(run: Run) -> tuple[Model, list[str]]:
    assumed: list[str] = []
    hidden, layers = run.whole("hidden"), run.whole("layers")
    if layers > MOST_LAYERS:
        raise Unjudgeable(f"layers = {layers} are more than any model has")
    heads = _heads(run, hidden, assumed)
    vocab = run.whole("vocab", ASSUMED_VOCAB)
    if not run.has("vocab"):
        assumed.append(f"vocabulary of {ASSUMED_VOCAB:,}")
    ungated = run.says(UNGATED, "model")
    attention = Attention(
        num_heads=heads, num_kv_heads=run.whole("kv_heads", heads), head_dim=run.whole("head_dim", max(1, hidden // heads))
    )
    moe = _moe(run)
    model = Model(
        name=run.text("model") or run.id, vocab_size=vocab, hidden_size=hidden, ffn_size=run.whole("ffn", 4 * hidden),
        attention=attention,
        layers=(LayerKind(moe=moe is not None),) * layers, moe=moe, activation="gelu" if ungated else "swiglu",
        norm="layernorm" if ungated else "rmsnorm", positions=_positions(run, ungated),
        mlp_bias=ungated and not run.says("mpt", "model"), max_positions=run.whole("seq_len", 1),
        tied_embeddings=_tied(run, ungated),
    )  # fmt: skip
    return _nearest_count(run, model, assumed), assumed


def _heads(run: Run, hidden: int, assumed: list[str]) -> int:
    if run.has("heads"):
        return run.whole("heads")
    assumed.append(f"heads of {ASSUMED_HEAD_DIM}")
    return max(1, hidden // ASSUMED_HEAD_DIM)


def _positions(run: Run, ungated: bool) -> Literal["rope", "learned", "alibi"]:
    if run.says("bloom|mpt", "model"):
        return "alibi" if run.says("bloom", "model") else "learned"
    return "learned" if ungated else "rope"


def _tied(run: Run, ungated: bool) -> bool:
    """GPT's descendants tie input and output; of others a note may say so for narrow models."""
    rule = re.search(r"tied embeddings when ffn<(\d+)", run.text("impl_notes"))
    return run.whole("ffn", 1) < int(rule[1]) if rule else ungated


def _moe(run: Run) -> Moe | None:
    if not run.has("experts"):
        return None
    if not run.has("topk"):
        raise Unjudgeable("experts per token are not given")
    return Moe(num_experts=run.whole("experts"), top_k=run.whole("topk"), expert_ffn_size=run.whole("ffn"))


def _nearest_count(run: Run, model: Model, assumed: list[str]) -> Model:
    """Of gated and ungated MLP the one whose parameters come nearest to the printed number, if one is printed."""
    if not run.has("params_b"):
        return model
    wanted = run.number("params_b") * 1e9
    other = replace(model, activation="swiglu" if model.activation == "gelu" else "gelu")
    off, other_off = (abs(parameter_count(each) / wanted - 1) for each in (model, other))
    if off > 0.1 and other_off < 0.5 * off:
        assumed.append(f"an MLP {'with' if other.gated else 'without'} a gate, by the number of parameters")
        return other
    return model
