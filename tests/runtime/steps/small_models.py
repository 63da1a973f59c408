"""A small model of every family that the parallel runtime executes, in sizes that tp = 2 and 4 can cut.

D = 16, N = 4 heads of H = 6, K = 2 kv heads, F = 24, V = 50 (no multiple of 4). 2 or 3 layers.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe, Rope

DENSE, MOE = LayerKind(), LayerKind(moe=True)

LLAMA = Model(
    name="llama",
    vocab_size=50,
    hidden_size=16,
    ffn_size=24,
    attention=Attention(num_heads=4, num_kv_heads=2, head_dim=6),
    layers=(DENSE, DENSE),
    max_positions=64,
    rope=Rope(theta=100.0),
)

_a = LLAMA.attention
_moe = Moe(num_experts=4, top_k=2, expert_ffn_size=8)
_mla = Mla(q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8)
_mla_attention = Attention(num_heads=4, num_kv_heads=4, head_dim=10, mla=_mla)

DEEPSEEK = replace(
    LLAMA,
    name="deepseek",
    attention=_mla_attention,
    layers=(DENSE, MOE),
    moe=replace(
        _moe, num_experts=8, top_k=3, shared_ffn_size=12, score="sigmoid", selection_bias=True, num_groups=4, top_groups=2, routed_scale=2.5
    ),
    rope=replace(LLAMA.rope, interleaved=True),
    mtp_layers=1,
)

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        LLAMA,
        replace(LLAMA, name="six_heads", attention=replace(_a, num_heads=6, num_kv_heads=6)),
        replace(LLAMA, name="biases", attention=replace(_a, qkv_bias=True, out_bias=True), mlp_bias=True, tied_embeddings=True),
        replace(LLAMA, name="mistral", layers=(LayerKind(window=5),) * 2),
        replace(LLAMA, name="qwen3", attention=replace(_a, qk_norm=True)),
        replace(
            LLAMA,
            name="gpt2",
            attention=Attention(num_heads=4, num_kv_heads=4, head_dim=4, qkv_bias=True, out_bias=True),
            activation="gelu_tanh",
            mlp_bias=True,
            norm="layernorm",
            positions="learned",
            tied_embeddings=True,
        ),
        replace(
            LLAMA,
            name="bloom",
            attention=Attention(num_heads=4, num_kv_heads=4, head_dim=4, qkv_bias=True, out_bias=True),
            activation="gelu_tanh",
            mlp_bias=True,
            norm="layernorm",
            positions="alibi",
            embedding_norm=True,
            tied_embeddings=True,
        ),
        replace(LLAMA, name="mixtral", layers=(MOE, MOE), moe=replace(_moe, aux_loss_coefficient=0.02)),
        replace(
            LLAMA,
            name="qwen3_moe",
            attention=replace(_a, qk_norm=True),
            layers=(MOE, DENSE, MOE),
            moe=replace(_moe, num_experts=8, top_k=3, norm_topk=False, aux_loss_coefficient=0.02),
        ),
        replace(
            LLAMA,
            name="gpt_oss",
            attention=replace(_a, qkv_bias=True, out_bias=True, sinks=True),
            layers=(LayerKind(window=5, moe=True), MOE),
            moe=replace(_moe, score="softmax_topk", router_bias=True, expert_bias=True, aux_loss_coefficient=0.02),
            activation="swiglu_clamped",
            activation_limit=1.5,
        ),
        DEEPSEEK,
        replace(
            DEEPSEEK,
            name="deepseek_v2",
            attention=replace(_mla_attention, mla=replace(_mla, q_lora_rank=None), qkv_bias=True),
            moe=replace(DEEPSEEK.moe, score="softmax", selection_bias=False, norm_topk=False),
            mtp_layers=0,
        ),
    )
}
