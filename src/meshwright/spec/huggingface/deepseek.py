"""DeepSeek-V3 and Kimi-K2: latent attention, dense first layers, shared experts, multi-token prediction.

As built by transformers 5.24 (models/deepseek_v3), which reads kimi_k2 as deepseek_v3 too. Keys that only DeepSeek's own
code reads (``scoring_func``, ``topk_method``, ``moe_layer_freq``) must say what transformers builds without them.
"""

from __future__ import annotations

from meshwright.spec.huggingface.config import Config
from meshwright.spec.huggingface.positions import read_rope
from meshwright.spec.huggingface.shape import Defaults, Shape, read_shape, read_uniform_window
from meshwright.spec.huggingface.stored_dtype import read_stored_dtype
from meshwright.spec.model import LARGEST_LAYERS, Attention, LayerKind, Mla, Model, Moe

__all__ = ["read_deepseek_v3"]

_DEEPSEEK_V3 = Defaults(
    vocab_size=129_280, hidden_size=7168, intermediate_size=18_432, num_hidden_layers=61, num_attention_heads=128,
    num_key_value_heads=128, max_position_embeddings=4096, null_kv_heads=True,
)  # fmt: skip


def read_deepseek_v3(config: Config) -> Model:
    """DeepSeek-V3 (arXiv 2412.19437) and models of its type."""
    shape = read_shape(config, _DEEPSEEK_V3)
    attention = _read_attention(config, shape)
    assert attention.mla is not None
    rope_dims = attention.mla.qk_rope_head_dim
    dense = _read_dense_layers(config, shape.num_layers)
    windows = read_uniform_window(config, shape.num_layers, None)
    moe = _read_moe(config)
    return Model(
        name="",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        ffn_size=shape.ffn_size,
        attention=attention,
        layers=(LayerKind(),) * dense + (LayerKind(moe=True),) * (len(windows) - dense),
        moe=moe if dense < shape.num_layers else None,
        norm_eps=shape.norm_eps,
        rope=read_rope(config, shape.max_positions, rope_dims, interleaved=config.flag("rope_interleave", True)),
        max_positions=shape.max_positions,
        tied_embeddings=shape.tied,
        mtp_layers=_read_mtp_layers(config, all_dense=dense == shape.num_layers),
        stored_dtype=read_stored_dtype(config),
    )


def _read_attention(config: Config, shape: Shape) -> Attention:
    bias = config.flag("attention_bias", False)
    mla = Mla(
        q_lora_rank=config.optional_size("q_lora_rank", 1536),
        kv_lora_rank=config.size("kv_lora_rank", 512),
        qk_nope_head_dim=config.size("qk_nope_head_dim", 128),
        qk_rope_head_dim=config.size("qk_rope_head_dim", 64),
        v_head_dim=config.size("v_head_dim", 128),
    )
    # transformers sets both itself; a config that says something else breaks its rotary positions or its heads
    config.only("head_dim", mla.qk_rope_head_dim, "is not qk_rope_head_dim, which transformers rotates", null=False)
    config.only("qk_head_dim", mla.qk_head_dim, "is not qk_nope_head_dim + qk_rope_head_dim", null=False)
    return Attention(
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=mla.qk_head_dim,
        qkv_bias=bias, out_bias=bias, mla=mla,
    )  # fmt: skip


def _read_moe(config: Config) -> Moe:
    config.only("scoring_func", "sigmoid", "is another router")
    config.only("topk_method", "noaux_tc", "is another router")
    expert = config.size("moe_intermediate_size", 2048)
    return Moe(
        num_experts=config.size("n_routed_experts", 256),
        top_k=config.size("num_experts_per_tok", 8),
        expert_ffn_size=expert,
        shared_ffn_size=expert * config.size("n_shared_experts", 1, low=0),
        score="sigmoid",
        selection_bias=True,
        num_groups=config.size("n_group", 8),
        top_groups=config.size("topk_group", 4),
        norm_topk=config.flag("norm_topk_prob", True),
        routed_scale=config.number("routed_scaling_factor", 2.5, above=0.0),
    )


def _read_dense_layers(config: Config, num_layers: int) -> int:
    """The first layers are dense, all others MoE."""
    config.only("moe_layer_freq", 1, "leaves out MoE layers, which transformers does not build")
    dense = config.size("first_k_dense_replace", 3, low=0)
    if dense > num_layers:
        if config.sound("first_k_dense_replace", "num_hidden_layers"):
            config.note("first_k_dense_replace", f"0 to num_hidden_layers = {num_layers}", problem="is more layers than there are")
        return num_layers
    return dense


def _read_mtp_layers(config: Config, *, all_dense: bool) -> int:
    layers = config.size("num_nextn_predict_layers", 1, low=0, high=LARGEST_LAYERS)
    if layers and all_dense and config.sound("num_nextn_predict_layers", "first_k_dense_replace", "num_hidden_layers"):
        config.note("num_nextn_predict_layers", "0 where all layers are dense", problem="would be MoE layers after dense ones")
    return layers
