"""What every family has: sizes, bounds, heads, and which layers see only a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.spec.huggingface.config import Config
from meshwright.spec.huggingface.features import LAYER_TYPES, note_layer_types
from meshwright.spec.model import LARGEST_LAYERS
from meshwright.spec.tables import LARGEST_SIZE

__all__ = ["Defaults", "Shape", "check_multiple", "read_head_dim", "read_layer_windows", "read_shape", "read_uniform_window"]

SILU = {"silu": "swiglu", "swish": "swiglu"}
"""Names of the activation inside a gated MLP that is planned."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What transformers 5.24 takes for a size that the config leaves out; None: as many kv heads as heads.

    null_kv_heads: whether num_key_value_heads may be null.
    pad_token_id: a row of the embedding that is left at zero, which has to be there.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    null_kv_heads: bool = False
    pad_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that the families after Llama share."""

    vocab_size: int
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    max_positions: int
    norm_eps: float
    tied: bool


def read_shape(config: Config, defaults: Defaults) -> Shape:
    """The sizes; ``hidden_act`` is checked on the way, and that the padding token is in the vocabulary."""
    config.choice("hidden_act", SILU, "silu")
    heads = config.size("num_attention_heads", defaults.num_attention_heads)
    shape = Shape(
        vocab_size=config.size("vocab_size", defaults.vocab_size),
        hidden_size=config.size("hidden_size", defaults.hidden_size),
        ffn_size=config.size("intermediate_size", defaults.intermediate_size),
        num_layers=config.size("num_hidden_layers", defaults.num_hidden_layers, high=LARGEST_LAYERS),
        num_heads=heads,
        num_kv_heads=_read_kv_heads(config, heads, defaults),
        max_positions=config.size("max_position_embeddings", defaults.max_position_embeddings),
        norm_eps=config.number("rms_norm_eps", defaults.rms_norm_eps, low=0.0, high=1.0),
        tied=config.flag("tie_word_embeddings", False),
    )
    _check_padding(config, shape.vocab_size, defaults.pad_token_id)
    return shape


def _check_padding(config: Config, vocab_size: int, default: int | None) -> None:
    """``pad_token_id`` is a row of the embedding, which torch counts from either end."""
    pad = config.optional_size("pad_token_id", default, low=-LARGEST_SIZE)
    if pad is not None and not -vocab_size <= pad < vocab_size and config.sound("vocab_size"):
        config.note("pad_token_id", f"null, or a token from 0 to {vocab_size - 1}", problem="is not in the vocabulary")


def _read_kv_heads(config: Config, heads: int, defaults: Defaults) -> int:
    """Where the family takes null, it stands for as many as query heads."""
    if defaults.num_key_value_heads is None:
        return config.optional_size("num_key_value_heads", heads) or heads
    if defaults.null_kv_heads and config.is_null("num_key_value_heads"):
        return heads
    return config.size("num_key_value_heads", defaults.num_key_value_heads)


def read_head_dim(config: Config, shape: Shape, default: int | None = None, *, null: bool = True) -> int:
    """``head_dim``; where it is absent ``default``, without one hidden_size / num_attention_heads.

    null: whether the family takes null, which stands for the quotient.
    """
    if "head_dim" in config:
        return config.integer("head_dim")
    if null and config.is_null("head_dim"):
        pass
    elif default is not None:
        return config.size("head_dim", default)
    check_multiple(config, shape)
    return max(1, shape.hidden_size // shape.num_heads)


def check_multiple(config: Config, shape: Shape) -> None:
    """``hidden_size`` is a multiple of the number of heads."""
    if shape.hidden_size % shape.num_heads and config.sound("hidden_size", "num_attention_heads"):
        legal = f"a multiple of num_attention_heads = {shape.num_heads}"
        config.note("hidden_size", legal, "or say head_dim, where the family has it", "does not divide into heads")
        config.distrust("head_dim")


def read_uniform_window(config: Config, num_layers: int, window: int | None) -> tuple[int | None, ...]:
    """Every layer has the same window; ``layer_types``, which these families do not use, may only repeat that."""
    kinds = _read_layer_types(config, num_layers)
    expected = "full_attention" if window is None else "sliding_attention"
    if kinds is not None and set(kinds) != {expected}:
        config.note("layer_types", f"{expected} in every layer, as transformers builds this model_type", problem="asks for other layers")
    return (window,) * num_layers


def read_layer_windows(config: Config, num_layers: int, window: int | None, default: Sequence[str]) -> tuple[int | None, ...]:
    """The window of each layer from ``layer_types``, or from ``default`` where that is absent or null."""
    kinds = _read_layer_types(config, num_layers) or default
    if window is None and "sliding_attention" in kinds and config.sound("layer_types"):
        config.note("layer_types", "full_attention in every layer, or a sliding window", problem="has sliding layers without a window")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _read_layer_types(config: Config, num_layers: int) -> list[str] | None:
    """One word for each layer; None where there is nothing sound."""
    config.allow_null("layer_types")
    if "layer_types" not in config or not note_layer_types(config):
        return None
    kinds = config.values["layer_types"]
    if not isinstance(kinds, list):
        config.note("layer_types", f"an array of {' '.join(LAYER_TYPES)}")
    elif len(kinds) != num_layers:
        if config.sound("num_hidden_layers"):
            config.note("layer_types", f"{num_layers} words, one for each layer", problem=f"has {len(kinds)} for {num_layers} layers")
    else:
        return kinds
    return None
