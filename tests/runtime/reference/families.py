"""Small models of every family, each as a transformers config and as our Model, written down side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import transformers

from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe, Rope

V, D, F, N, K, H = 61, 32, 40, 4, 2, 10
"""Vocabulary, model width, ffn, heads, kv heads, head dim: no two alike, so that a swapped dim cannot pass."""

DENSE, MOE = LayerKind(), LayerKind(moe=True)


@dataclass(frozen=True)
class Family:
    """naming: of ``to_huggingface`` for the model in memory. config: made anew for each test, transformers writes into it."""

    name: str
    config: Callable[[], transformers.PreTrainedConfig]
    model: Model
    naming: str = "fused"


def _llama_like(kind: str, **changes: object) -> Callable[[], transformers.PreTrainedConfig]:
    sizes: dict[str, object] = {
        "vocab_size": V,
        "hidden_size": D,
        "intermediate_size": F,
        "num_hidden_layers": 3,
        "num_attention_heads": N,
        "num_key_value_heads": K,
        "head_dim": H,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "pad_token_id": None,
    }
    return lambda: transformers.AutoConfig.for_model(kind, **(sizes | changes))


def _model(**changes: object) -> Model:
    plain = Model(
        name="small",
        vocab_size=V,
        hidden_size=D,
        ffn_size=F,
        attention=Attention(num_heads=N, num_kv_heads=K, head_dim=H),
        layers=(DENSE,) * 3,
        norm_eps=1e-5,
        max_positions=64,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def _scaling(rope: dict[str, float | str | bool]) -> Rope:
    rest = {key: value for key, value in rope.items() if key != "rope_theta"}
    return Rope(theta=float(rope["rope_theta"]), scaling=tuple(sorted(rest.items())))


LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 4096}
DEEPSEEK_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1}
DEEPSEEK_YARN |= {"mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 4096}

_attention = _model().attention
_mla = Mla(q_lora_rank=12, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8)
_mla_attention = Attention(num_heads=N, num_kv_heads=N, head_dim=10, mla=_mla)
_deepseek_moe = Moe(
    num_experts=8,
    top_k=3,
    expert_ffn_size=18,
    shared_ffn_size=36,
    score="sigmoid",
    selection_bias=True,
    num_groups=4,
    top_groups=2,
    routed_scale=2.5,
)


def _deepseek(kind: str = "deepseek_v3", **changes: object) -> Callable[[], transformers.PreTrainedConfig]:
    sizes: dict[str, object] = {
        "head_dim": 4,
        "q_lora_rank": 12,
        "kv_lora_rank": 14,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_key_value_heads": N,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 18,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "rope_parameters": dict(DEEPSEEK_YARN),
    }
    return _llama_like(kind, **(sizes | changes))


_deepseek_model = _model(
    attention=_mla_attention, layers=(DENSE, MOE, MOE), moe=_deepseek_moe, rope=replace(_scaling(DEEPSEEK_YARN), interleaved=True)
)

FAMILIES = [
    Family("llama", _llama_like("llama", rope_parameters=dict(LLAMA3)), _model(rope=_scaling(LLAMA3))),
    Family("llama linear", _llama_like("llama", rope_parameters=dict(LINEAR)), _model(rope=_scaling(LINEAR))),
    Family(
        "llama dynamic",
        _llama_like("llama", rope_parameters=dict(DYNAMIC), max_position_embeddings=16),
        _model(rope=_scaling(DYNAMIC), max_positions=16),
    ),
    Family(
        "llama tied, biases",
        _llama_like("llama", tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
        _model(tied_embeddings=True, mlp_bias=True, attention=replace(_attention, qkv_bias=True, out_bias=True)),
    ),
    Family("mistral", _llama_like("mistral", sliding_window=7), _model(layers=(LayerKind(window=7),) * 3)),
    Family("qwen2", _llama_like("qwen2"), _model(attention=replace(_attention, qkv_bias=True))),
    Family("qwen3", _llama_like("qwen3"), _model(attention=replace(_attention, qk_norm=True))),
    Family(
        "mixtral",
        _llama_like("mixtral", num_local_experts=5, num_experts_per_tok=2, router_aux_loss_coef=0.02, output_router_logits=True),
        _model(layers=(MOE,) * 3, moe=Moe(num_experts=5, top_k=2, expert_ffn_size=F, aux_loss_coefficient=0.02), rope=Rope(theta=1e6)),
    ),
    Family(
        "qwen3_moe",
        _llama_like(
            "qwen3_moe",
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=18,
            mlp_only_layers=[1],
            router_aux_loss_coef=0.02,
            output_router_logits=True,
        ),
        _model(
            attention=replace(_attention, qk_norm=True),
            layers=(MOE, DENSE, MOE),
            moe=Moe(num_experts=6, top_k=3, expert_ffn_size=18, norm_topk=False, aux_loss_coefficient=0.02),
        ),
    ),
    Family("deepseek_v3", _deepseek(), _deepseek_model),
    Family(
        "kimi_k2",
        _deepseek(n_group=1, topk_group=1, routed_scaling_factor=2.827, n_shared_experts=1, rope_parameters=dict(YARN)),
        replace(
            _deepseek_model,
            moe=replace(_deepseek_moe, num_groups=1, top_groups=1, routed_scale=2.827, shared_ffn_size=18),
            rope=replace(_scaling(YARN), interleaved=True),
        ),
    ),
    Family(
        "deepseek_v3 without q_lora, norm_topk and interleaving",
        _deepseek(q_lora_rank=None, norm_topk_prob=False, rope_interleave=False, rope_parameters=None, attention_bias=True),
        replace(
            _deepseek_model,
            attention=replace(_mla_attention, mla=replace(_mla, q_lora_rank=None), qkv_bias=True, out_bias=True),
            moe=replace(_deepseek_moe, norm_topk=False),
            rope=Rope(),
        ),
    ),
    Family(
        "deepseek_v2",
        _deepseek("deepseek_v2", topk_method="group_limited_greedy", rope_parameters=None),
        replace(
            _deepseek_model,
            moe=replace(_deepseek_moe, score="softmax", selection_bias=False, norm_topk=False),
            rope=Rope(interleaved=True),
        ),
    ),
    Family(
        "gpt_oss",
        _llama_like(
            "gpt_oss",
            num_local_experts=5,
            num_experts_per_tok=2,
            sliding_window=7,
            swiglu_limit=1.5,
            rope_parameters=dict(YARN),
            router_aux_loss_coef=0.02,
            output_router_logits=True,
        ),
        _model(
            attention=replace(_attention, qkv_bias=True, out_bias=True, sinks=True),
            layers=(LayerKind(window=7, moe=True), MOE, LayerKind(window=7, moe=True)),
            moe=Moe(
                num_experts=5,
                top_k=2,
                expert_ffn_size=F,
                score="softmax_topk",
                router_bias=True,
                expert_bias=True,
                aux_loss_coefficient=0.02,
            ),
            activation="swiglu_clamped",
            activation_limit=1.5,
            rope=_scaling(YARN),
        ),
        "gpt_oss",
    ),
    Family(
        "gpt2",
        lambda: transformers.GPT2Config(
            vocab_size=V,
            n_positions=64,
            n_embd=D,
            n_layer=3,
            n_head=N,
            n_inner=F,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            bos_token_id=None,
            eos_token_id=None,
        ),
        _model(
            attention=Attention(num_heads=N, num_kv_heads=N, head_dim=D // N, qkv_bias=True, out_bias=True),
            activation="gelu_tanh",
            mlp_bias=True,
            norm="layernorm",
            positions="learned",
            tied_embeddings=True,
        ),
        "gpt2",
    ),
    Family(
        "bloom",
        lambda: transformers.BloomConfig(
            vocab_size=V,
            hidden_size=36,
            n_layer=3,
            n_head=6,
            hidden_dropout=0,
            attention_dropout=0,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        _model(
            hidden_size=36,
            ffn_size=4 * 36,
            attention=Attention(num_heads=6, num_kv_heads=6, head_dim=6, qkv_bias=True, out_bias=True),
            activation="gelu_tanh",
            mlp_bias=True,
            norm="layernorm",
            positions="alibi",
            embedding_norm=True,
            tied_embeddings=True,
        ),
        "bloom",
    ),
]
