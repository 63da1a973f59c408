"""Llama and the dense families that differ from it by a bias, a norm or a window.

As built by transformers 5.24: models/llama, seed_oss, mistral, qwen2, qwen3.
"""

from __future__ import annotations

from meshwright.spec.huggingface.config import Config
from meshwright.spec.huggingface.positions import read_rope
from meshwright.spec.huggingface.shape import (
    Defaults,
    Shape,
    check_multiple,
    read_head_dim,
    read_layer_windows,
    read_shape,
    read_uniform_window,
)
from meshwright.spec.huggingface.stored_dtype import read_stored_dtype
from meshwright.spec.model import Attention, LayerKind, Model

__all__ = ["note_qwen3_copies", "read_llama", "read_mistral", "read_qwen2", "read_qwen3", "read_seed_oss"]

_LLAMA = Defaults(
    vocab_size=32_000, hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=None, max_position_embeddings=2048,
)  # fmt: skip
_SEED_OSS = Defaults(
    vocab_size=155_136, hidden_size=4096, intermediate_size=27_648, num_hidden_layers=64, num_attention_heads=80,
    num_key_value_heads=8, max_position_embeddings=524_288, null_kv_heads=True, pad_token_id=1,
)  # fmt: skip
_MISTRAL = Defaults(
    vocab_size=32_000, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=131_072,
)  # fmt: skip
_QWEN = Defaults(
    vocab_size=151_936, hidden_size=4096, intermediate_size=22_016, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=32, max_position_embeddings=32_768, null_kv_heads=True,
)  # fmt: skip


def read_llama(config: Config) -> Model:
    """Llama 1 to 3, and what else says ``"model_type": "llama"``."""
    shape = read_shape(config, _LLAMA)
    if "head_dim" in config:
        check_multiple(config, shape)  # transformers demands it even then
    bias = config.flag("attention_bias", False)
    attention = _attention(shape, read_head_dim(config, shape), qkv_bias=bias, out_bias=bias)
    windows = read_uniform_window(config, shape.num_layers, None)
    return _dense(config, shape, attention, windows, mlp_bias=config.flag("mlp_bias", False))


def read_seed_oss(config: Config) -> Model:
    """Seed-OSS: the biases of query, key and value are set apart from the output's."""
    shape = read_shape(config, _SEED_OSS)
    qkv_bias, out_bias = config.flag("attention_bias", True), config.flag("attention_out_bias", False)
    attention = _attention(shape, read_head_dim(config, shape, 128), qkv_bias=qkv_bias, out_bias=out_bias)
    windows = read_uniform_window(config, shape.num_layers, None)
    return _dense(config, shape, attention, windows, mlp_bias=config.flag("mlp_bias", False))


def read_mistral(config: Config) -> Model:
    """Mistral 7B and its successors of the same type."""
    shape = read_shape(config, _MISTRAL)
    attention = _attention(shape, read_head_dim(config, shape))
    windows = read_uniform_window(config, shape.num_layers, config.optional_size("sliding_window", 4096))
    return _dense(config, shape, attention, windows)


def read_qwen2(config: Config) -> Model:
    """Qwen2 and Qwen2.5: biases on query, key and value, never on the output."""
    shape = read_shape(config, _QWEN)
    attention = _attention(shape, read_head_dim(config, shape, null=False), qkv_bias=True)
    return _dense(config, shape, attention, _read_qwen_windows(config, shape.num_layers))


def read_qwen3(config: Config) -> Model:
    """Qwen3: a norm on each head's query and key."""
    shape = read_shape(config, _QWEN)
    note_qwen3_copies(config)
    bias = config.flag("attention_bias", False)
    attention = _attention(shape, read_head_dim(config, shape, 128, null=False), qkv_bias=bias, out_bias=bias, qk_norm=True)
    return _dense(config, shape, attention, _read_qwen_windows(config, shape.num_layers))


def note_qwen3_copies(config: Config) -> None:
    """Two keys of Qwen3-Coder's files say what transformers builds without reading them."""
    config.only("use_qk_norm", True, "leaves out the norm of queries and keys, which transformers builds")
    config.only("qkv_bias", False, "is not what transformers reads: attention_bias adds the biases")


def _attention(shape: Shape, head_dim: int, *, qkv_bias: bool = False, out_bias: bool = False, qk_norm: bool = False) -> Attention:
    return Attention(
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=head_dim,
        qkv_bias=qkv_bias, out_bias=out_bias, qk_norm=qk_norm,
    )  # fmt: skip


def _read_qwen_windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """Without ``layer_types`` the window holds from layer ``max_window_layers`` on, and only with ``use_sliding_window``."""
    window = config.optional_size("sliding_window", 4096)
    first = config.integer("max_window_layers", 28, low=0)
    if not config.flag("use_sliding_window", False):
        window = None
    full = num_layers if window is None else min(first, num_layers)
    default = ["full_attention"] * full + ["sliding_attention"] * (num_layers - full)
    return read_layer_windows(config, num_layers, window, default)


def _dense(config: Config, shape: Shape, attention: Attention, windows: tuple[int | None, ...], mlp_bias: bool = False) -> Model:
    kinds = {window: LayerKind(window=window) for window in dict.fromkeys(windows)}
    return Model(
        name="",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        ffn_size=shape.ffn_size,
        attention=attention,
        layers=tuple(kinds[window] for window in windows),
        mlp_bias=mlp_bias,
        norm_eps=shape.norm_eps,
        rope=read_rope(config, shape.max_positions, attention.head_dim),
        max_positions=shape.max_positions,
        tied_embeddings=shape.tied,
        stored_dtype=read_stored_dtype(config),
    )
