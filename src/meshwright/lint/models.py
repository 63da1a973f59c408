"""The model of a launch script: from a framework's sizes, or a name that the catalog knows."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.catalog import list_names
from meshwright.errors import InputError
from meshwright.spec.load_model import load_model, resolve_model
from meshwright.spec.model import Attention, LayerKind, Model, Moe

__all__ = ["model_of_sizes", "named_model", "stand_in"]


MOST_LAYERS = 100_000
"""A hundred times the deepest models; beyond it a number is a slip, and a model of it would fill the memory."""


def named_model(name: str, beside: Path | None = None) -> Model | None:
    """``meta-llama/Llama-3.1-70B-Instruct`` -> llama-3.1-70b of the catalog; a folder with a config.json; None if neither."""
    for folder in (Path(name), *((beside / name,) if beside else ())):
        try:
            if (folder / "config.json").is_file():
                return load_model(folder)
        except (InputError, OSError, ValueError):
            return None
    wanted = _plain(name.rpartition("/")[2])
    names = {_plain(known): known for known in list_names("models")}
    found = [
        known for plain, known in names.items() if re.fullmatch(rf"{re.escape(plain)}(?:instruct|chat|base|hf|it|fp8|awq|v\d+)*", wanted)
    ]
    try:
        return resolve_model(max(found, key=len)) if found else None
    except InputError:
        return None


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]|meta(?=llama)", "", name.lower())


def model_of_sizes(
    layers: int, hidden: int, heads: int, kv_heads: int | None, ffn: int | None, vocab: int | None, positions: int | None,
    experts: int | None = None, top_k: int | None = None, expert_ffn: int | None = None, gated: bool = True,
) -> Model:  # fmt: skip
    """A model of which the sizes that decide its cuts are known; others take usual values."""
    moe = Moe(num_experts=experts, top_k=top_k or 1, expert_ffn_size=expert_ffn or ffn or 4 * hidden) if experts else None
    return Model(
        name="the script's model", vocab_size=vocab or 128_256, hidden_size=hidden, ffn_size=ffn or 4 * hidden,
        attention=Attention(num_heads=heads, num_kv_heads=kv_heads or heads, head_dim=max(hidden // heads, 1)),
        layers=(LayerKind(moe=moe is not None),) * layers, moe=moe, max_positions=positions or 1 << 20,
        activation="swiglu" if gated else "gelu",
    )  # fmt: skip


def stand_in(chunks: int, stages_sum: int | None, experts: int) -> Model:
    """A model for rules that do not look at one, where the file does not say which it is."""
    layers = min(stages_sum or chunks * 4, MOST_LAYERS)
    return model_of_sizes(layers, 1 << 20, 1 << 13, 1 << 13, 1 << 21, 1 << 20, 1 << 24, experts << 10 if experts else None, 1, 1 << 21)
