"""Small hand-written models and clusters for tests of rules, groups and frameworks; sizes from the models' own config.json."""

from __future__ import annotations

from meshwright.spec.cluster import Cluster, Device, Tier
from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe

LLAMA_70B = Model(
    name="llama-3.1-70b",
    vocab_size=128_256,
    hidden_size=8192,
    ffn_size=28_672,
    attention=Attention(num_heads=64, num_kv_heads=8, head_dim=128),
    layers=(LayerKind(),) * 80,
)

GPT2_XL = Model(
    name="gpt2-xl",
    vocab_size=50_257,
    hidden_size=1600,
    ffn_size=6400,
    attention=Attention(num_heads=25, num_kv_heads=25, head_dim=64, qkv_bias=True, out_bias=True),
    layers=(LayerKind(),) * 48,
    activation="gelu_tanh",
    norm="layernorm",
    positions="learned",
    max_positions=1024,
    tied_embeddings=True,
)

QWEN_MOE = Model(
    name="qwen3-30b-a3b",
    vocab_size=151_936,
    hidden_size=2048,
    ffn_size=6144,
    attention=Attention(num_heads=32, num_kv_heads=4, head_dim=128, qk_norm=True),
    layers=(LayerKind(moe=True),) * 48,
    moe=Moe(num_experts=128, top_k=8, expert_ffn_size=768),
    max_positions=40_960,
)

DEEPSEEK_V3 = Model(
    name="deepseek-v3",
    vocab_size=129_280,
    hidden_size=7168,
    ffn_size=18_432,
    attention=Attention(
        num_heads=128,
        num_kv_heads=128,
        head_dim=192,
        mla=Mla(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    ),
    layers=(LayerKind(),) * 3 + (LayerKind(moe=True),) * 58,
    moe=Moe(num_experts=256, top_k=8, expert_ffn_size=2048, shared_ffn_size=2048, score="sigmoid", selection_bias=True),
    mtp_layers=1,
)

MODELS = (LLAMA_70B, GPT2_XL, QWEN_MOE, DEEPSEEK_V3)

H100 = Device(
    name="h100-sxm",
    memory_bytes=80 << 30,
    hbm_bandwidth_bytes_per_s=3.35e12,
    peak_flops_per_s=(("bf16", 989e12),),
    reserved_bytes=0,
)

H100_CLUSTER = Cluster(
    name="h100-sxm",
    device=H100,
    tiers=(
        Tier(name="nvlink", size=8, bandwidth_bytes_per_s=450e9, latency_s=1e-6),
        Tier(name="infiniband", size=None, bandwidth_bytes_per_s=50e9, latency_s=5e-6),
    ),
)

SLOW_CLUSTER = Cluster(
    name="h100-ethernet",
    device=H100,
    tiers=(
        Tier(name="nvlink", size=8, bandwidth_bytes_per_s=450e9, latency_s=1e-6),
        Tier(name="ethernet", size=None, bandwidth_bytes_per_s=3e9, latency_s=2e-5),
    ),
)
