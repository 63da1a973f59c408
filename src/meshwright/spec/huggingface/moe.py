"""Mixtral, Qwen3-MoE and gpt-oss: grouped-query attention and a softmax router.

As built by transformers 5.24: models/mixtral, qwen3_moe, gpt_oss.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.spec.huggingface.config import Config
from meshwright.spec.huggingface.llama import note_qwen3_copies
from meshwright.spec.huggingface.positions import read_rope
from meshwright.spec.huggingface.shape import Defaults, Shape, read_head_dim, read_layer_windows, read_shape, read_uniform_window
from meshwright.spec.huggingface.stored_dtype import read_stored_dtype
from meshwright.spec.model import Attention, LayerKind, Model, Moe
from meshwright.spec.rope_scaling import Scaling

__all__ = ["read_gpt_oss", "read_mixtral", "read_qwen3_moe"]

_MIXTRAL = Defaults(
    vocab_size=32_000, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=131_072, rms_norm_eps=1e-5,
)  # fmt: skip
_QWEN3_MOE = Defaults(
    vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=24, num_attention_heads=32,
    num_key_value_heads=4, max_position_embeddings=32_768,
)  # fmt: skip
_GPT_OSS = Defaults(
    vocab_size=201_088, hidden_size=2880, intermediate_size=2880, num_hidden_layers=36, num_attention_heads=64,
    num_key_value_heads=8, max_position_embeddings=131_072, rms_norm_eps=1e-5,
)  # fmt: skip

_GPT_OSS_SCALING: Scaling = (
    ("beta_fast", 32.0), ("beta_slow", 1.0), ("factor", 32.0), ("original_max_position_embeddings", 4096),
    ("rope_type", "yarn"), ("truncate", False),
)  # fmt: skip
"""What transformers takes where a gpt_oss config says nothing about positions."""


def read_mixtral(config: Config) -> Model:
    """Every layer is MoE; the chosen weights are scaled to sum to one."""
    shape = read_shape(config, _MIXTRAL)
    attention = Attention(num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=read_head_dim(config, shape))
    moe = Moe(
        num_experts=config.size("num_local_experts", 8),
        top_k=config.size("num_experts_per_tok", 2),
        expert_ffn_size=shape.ffn_size,
        aux_loss_coefficient=_read_aux_loss(config),
    )
    windows = read_uniform_window(config, shape.num_layers, config.optional_size("sliding_window", None))
    return _model(config, shape, attention, windows, moe, theta=1e6)


def read_qwen3_moe(config: Config) -> Model:
    """Layers may be dense: those of ``mlp_only_layers`` and those that ``decoder_sparse_step`` passes over."""
    shape = read_shape(config, _QWEN3_MOE)
    note_qwen3_copies(config)
    bias = config.flag("attention_bias", False)
    attention = Attention(
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=read_head_dim(config, shape, null=False),
        qkv_bias=bias, out_bias=bias, qk_norm=True,
    )  # fmt: skip
    moe = Moe(
        num_experts=config.size("num_experts", 128),
        top_k=config.size("num_experts_per_tok", 8),
        expert_ffn_size=config.size("moe_intermediate_size", 768),
        norm_topk=config.flag("norm_topk_prob", False),
        aux_loss_coefficient=_read_aux_loss(config),
    )
    window = config.optional_size("sliding_window", 4096)
    if not config.flag("use_sliding_window", False):
        window = None
    windows = read_uniform_window(config, shape.num_layers, window)
    return _model(config, shape, attention, windows, moe, dense=_read_dense_layers(config, shape.num_layers))


def read_gpt_oss(config: Config) -> Model:
    """Sinks, biases everywhere, windows in every other layer, a clamped SwiGLU in the experts."""
    shape = read_shape(config, _GPT_OSS)
    bias = config.flag("attention_bias", True)
    attention = Attention(
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=read_head_dim(config, shape, 64, null=False),
        qkv_bias=bias, out_bias=bias, sinks=True,
    )  # fmt: skip
    moe = Moe(
        num_experts=config.size("num_local_experts", 128),
        top_k=config.size("num_experts_per_tok", 4),
        expert_ffn_size=shape.ffn_size,
        score="softmax_topk",
        router_bias=True,
        expert_bias=True,
        aux_loss_coefficient=_read_aux_loss(config),
    )
    if "experts_per_token" in config and config.values["experts_per_token"] != moe.top_k:  # another copy in the published files
        config.note("experts_per_token", f"{moe.top_k}, as num_experts_per_tok", "leave it out", "contradicts num_experts_per_tok")
    window = config.optional_size("sliding_window", 128)
    alternate = ["full_attention" if index % 2 else "sliding_attention" for index in range(shape.num_layers)]
    windows = read_layer_windows(config, shape.num_layers, window, alternate)
    config.only("swiglu_alpha", 1.702, "is not the gain that is planned", null=False)
    model = _model(config, shape, attention, windows, moe, theta=150_000.0, absent=_GPT_OSS_SCALING)
    return replace(model, activation="swiglu_clamped", activation_limit=config.number("swiglu_limit", 7.0, above=0.0))


def _read_aux_loss(config: Config) -> float:
    """The weight of the load-balancing loss. transformers adds that loss only where ``output_router_logits`` is set."""
    return config.number("router_aux_loss_coef", 0.001, low=0.0)


def _read_dense_layers(config: Config, num_layers: int) -> frozenset[int]:
    config.allow_null("mlp_only_layers")
    listed = config.integers("mlp_only_layers", (), high=num_layers - 1)
    step = config.integer("decoder_sparse_step", 1)
    dense = frozenset(listed) | {index for index in range(num_layers) if (index + 1) % step}
    if len(dense) == num_layers and config.sound("mlp_only_layers", "decoder_sparse_step"):
        key = "decoder_sparse_step" if step > num_layers else "mlp_only_layers"
        config.note(key, "at least one MoE layer", 'or "model_type": "qwen3"', "leaves no layer for the experts")
    return dense


def _model(
    config: Config, shape: Shape, attention: Attention, windows: tuple[int | None, ...], moe: Moe,
    *, dense: frozenset[int] = frozenset(), theta: float = 10_000.0, absent: Scaling = (),
) -> Model:  # fmt: skip
    kinds = {(window, moe): LayerKind(window=window, moe=moe) for window in set(windows) for moe in (False, True)}
    return Model(
        name="",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        ffn_size=shape.ffn_size,
        attention=attention,
        layers=tuple(kinds[window, index not in dense] for index, window in enumerate(windows)),
        moe=moe if len(dense) < len(windows) else None,
        norm_eps=shape.norm_eps,
        rope=read_rope(config, shape.max_positions, attention.head_dim, theta=theta, absent=absent),
        max_positions=shape.max_positions,
        tied_embeddings=shape.tied,
        stored_dtype=read_stored_dtype(config),
    )
