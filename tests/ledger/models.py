"""Models whose ledgers differ in kind: grouped heads, latent attention, experts, tied heads, windows, biases.

Sizes of real models where a test compares with a published figure; small ones, with every part that a model can have,
where it compares the ledger with itself.
"""

from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe

DENSE, EXPERTS = LayerKind(), LayerKind(moe=True)

LLAMA_70B = Model(
    name="llama-3-70b", vocab_size=128_256, hidden_size=8192, ffn_size=28_672, layers=(DENSE,) * 80,
    attention=Attention(num_heads=64, num_kv_heads=8, head_dim=128),
)  # fmt: skip
"""Grattafiori et al. (arXiv 2407.21783), table 3."""

GPT3_175B = Model(
    name="gpt3-175b", vocab_size=51_200, hidden_size=12_288, ffn_size=49_152, layers=(DENSE,) * 96,
    attention=Attention(num_heads=96, num_kv_heads=96, head_dim=128, qkv_bias=True, out_bias=True),
    activation="gelu", mlp_bias=True, norm="layernorm", positions="learned", max_positions=2048, tied_embeddings=True,
)  # fmt: skip
"""Korthikanti et al. (arXiv 2205.05198), table 3."""

DEEPSEEK_V3 = Model(
    name="deepseek-v3", vocab_size=129_280, hidden_size=7168, ffn_size=18_432, layers=(DENSE,) * 3 + (EXPERTS,) * 58,
    attention=Attention(
        num_heads=128, num_kv_heads=128, head_dim=192,
        mla=Mla(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    ),
    moe=Moe(num_experts=256, top_k=8, expert_ffn_size=2048, shared_ffn_size=2048, score="sigmoid", selection_bias=True, num_groups=8,
            top_groups=4, routed_scale=2.5, aux_loss_coefficient=1e-4),
    mtp_layers=1,
)  # fmt: skip
"""DeepSeek-AI (arXiv 2412.19437), section 4.2."""

SMALL_GROUPED = Model(
    name="small-grouped", vocab_size=1003, hidden_size=96, ffn_size=240, layers=(DENSE,) * 12,
    attention=Attention(num_heads=24, num_kv_heads=4, head_dim=16, qk_norm=True),
)  # fmt: skip

SMALL_TIED = Model(
    name="small-tied", vocab_size=1003, hidden_size=96, ffn_size=384, layers=(DENSE,) * 12,
    attention=Attention(num_heads=24, num_kv_heads=24, head_dim=4, qkv_bias=True, out_bias=True),
    activation="gelu", mlp_bias=True, norm="layernorm", positions="learned", max_positions=8192, embedding_norm=True,
    tied_embeddings=True,
)  # fmt: skip

SMALL_LATENT = Model(
    name="small-latent", vocab_size=1003, hidden_size=96, ffn_size=192, layers=(DENSE,) * 2 + (EXPERTS,) * 10,
    attention=Attention(
        num_heads=24, num_kv_heads=1, head_dim=24,
        mla=Mla(q_lora_rank=40, kv_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12),
    ),
    moe=Moe(
        num_experts=16, top_k=4, expert_ffn_size=48, shared_ffn_size=96, score="sigmoid", selection_bias=True,
        aux_loss_coefficient=1e-4,
    ),
    mtp_layers=2,
)  # fmt: skip
"""num_kv_heads says nothing in latent attention: its core has as many kv heads as heads."""

SMALL_LATENT_PLAIN_Q = Model(
    name="small-latent-plain-q", vocab_size=1003, hidden_size=96, ffn_size=192, layers=(DENSE,) * 12,
    attention=Attention(
        num_heads=24, num_kv_heads=24, head_dim=24,
        mla=Mla(q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12),
    ),
    tied_embeddings=True, mtp_layers=1,
)  # fmt: skip

SMALL_EXPERTS = Model(
    name="small-experts", vocab_size=1003, hidden_size=96, ffn_size=192,
    layers=(LayerKind(window=128, moe=True), EXPERTS) * 6,
    attention=Attention(num_heads=24, num_kv_heads=8, head_dim=16, qkv_bias=True, out_bias=True, sinks=True),
    moe=Moe(num_experts=24, top_k=2, expert_ffn_size=48, router_bias=True, expert_bias=True, aux_loss_coefficient=1e-3),
)  # fmt: skip

SMALL = (SMALL_GROUPED, SMALL_TIED, SMALL_LATENT, SMALL_LATENT_PLAIN_Q, SMALL_EXPERTS)
