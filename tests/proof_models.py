"""Tiny models of every family for proofs on real processes: as small as the rules allow, with sizes that are no round numbers.

Vocabulary 50 is odd for tp = 4 and 3; 6 heads are odd for tp = 4; 2 kv heads are too few for it.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe, Rope

DENSE, MOE = LayerKind(), LayerKind(moe=True)
WINDOW = 5
"""Shorter than the chunk of any rank, longer than one token."""

LLAMA3_SCALING = (("factor", 8.0), ("high_freq_factor", 4.0), ("low_freq_factor", 1.0), ("original_max_position_embeddings", 64),
                  ("rope_type", "llama3"))  # fmt: skip

LLAMA = Model(
    name="llama", vocab_size=50, hidden_size=36, ffn_size=48, layers=(DENSE,) * 2, max_positions=64,
    attention=Attention(num_heads=4, num_kv_heads=2, head_dim=8), rope=Rope(theta=500.0, scaling=LLAMA3_SCALING),
)  # fmt: skip

_SIX_HEADS = replace(LLAMA, name="llama 6 heads", attention=replace(LLAMA.attention, num_heads=6, num_kv_heads=3))

GPT2 = replace(
    LLAMA, name="gpt2", attention=Attention(num_heads=6, num_kv_heads=6, head_dim=6, qkv_bias=True, out_bias=True),
    activation="gelu_tanh", mlp_bias=True, norm="layernorm", positions="learned", tied_embeddings=True, rope=Rope(),
)  # fmt: skip

BLOOM = replace(
    GPT2, name="bloom", attention=replace(GPT2.attention, num_heads=8, num_kv_heads=8, head_dim=4), positions="alibi", embedding_norm=True
)

QWEN3 = replace(LLAMA, name="qwen3", attention=replace(LLAMA.attention, qk_norm=True), rope=Rope(), tied_embeddings=True)

MIXTRAL = replace(
    LLAMA, name="mixtral", layers=(MOE,) * 2, rope=Rope(),
    moe=Moe(num_experts=4, top_k=2, expert_ffn_size=24, aux_loss_coefficient=0.02),
)  # fmt: skip

QWEN3_MOE = replace(
    QWEN3, name="qwen3_moe", layers=(MOE, DENSE), tied_embeddings=False,
    moe=Moe(num_experts=8, top_k=3, expert_ffn_size=20, norm_topk=False, aux_loss_coefficient=0.02),
)  # fmt: skip

SPARSE = replace(MIXTRAL, name="sparse", moe=Moe(num_experts=16, top_k=1, expert_ffn_size=8, norm_topk=False))
"""More experts than a rank has tokens: some experts, and some ranks, have nothing to do."""

DEEPSEEK = replace(
    LLAMA, name="deepseek_v3", layers=(DENSE, MOE), rope=Rope(interleaved=True), mtp_layers=1,
    attention=Attention(
        num_heads=4, num_kv_heads=4, head_dim=10,
        mla=Mla(q_lora_rank=12, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8),
    ),
    moe=Moe(
        num_experts=8, top_k=2, expert_ffn_size=12, shared_ffn_size=24, score="sigmoid", selection_bias=True, num_groups=4, top_groups=2,
        routed_scale=2.5,
    ),
)  # fmt: skip

GPT_OSS = replace(
    LLAMA, name="gpt_oss", layers=(LayerKind(window=WINDOW, moe=True), MOE), activation="swiglu_clamped", activation_limit=1.5,
    attention=Attention(num_heads=8, num_kv_heads=2, head_dim=6, qkv_bias=True, out_bias=True, sinks=True), rope=Rope(theta=150_000.0),
    moe=Moe(
        num_experts=4, top_k=2, expert_ffn_size=16, score="softmax_topk", router_bias=True, expert_bias=True, aux_loss_coefficient=0.02
    ),
)  # fmt: skip

MISTRAL = replace(LLAMA, name="mistral", layers=(LayerKind(window=WINDOW),) * 2, rope=Rope())

MODELS = {
    model.name.replace(" ", "_"): model
    for model in (LLAMA, _SIX_HEADS, MISTRAL, GPT2, BLOOM, QWEN3, MIXTRAL, QWEN3_MOE, SPARSE, DEEPSEEK, GPT_OSS)
}
"""By the name that tests/prove/matrix.txt calls them."""
