"""One config.json of each family, small, with the keys that published files of it have; and ways to change one."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 256, "initializer_range": 0.02, "intermediate_size": 688, "max_position_embeddings": 4096,
    "mlp_bias": False, "model_type": "llama", "num_attention_heads": 8, "num_hidden_layers": 3, "num_key_value_heads": 2,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 2048,
                     "rope_type": "llama3"},
    "transformers_version": "4.43.0", "use_cache": True, "vocab_size": 1000,
}  # fmt: skip


def _llama_like(model_type: str, architecture: str, without: tuple[str, ...] = ("mlp_bias", "rope_scaling"), **more: Any) -> dict[str, Any]:
    kept = {key: value for key, value in _LLAMA.items() if key not in without}
    return {**kept, "model_type": model_type, "architectures": [architecture], **more}


_NO_BIAS = ("mlp_bias", "rope_scaling", "attention_bias", "pretraining_tp")
_DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 8, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 48, "moe_intermediate_size": 64,
    "moe_layer_freq": 1, "n_group": 4, "topk_group": 2, "n_routed_experts": 16, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_experts_per_tok": 4, "num_nextn_predict_layers": 1, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "ep_size": 1, "num_hidden_layers": 4,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _llama_like("mistral", "MistralForCausalLM", _NO_BIAS, sliding_window=1024),
    "seed_oss": _llama_like(
        "seed_oss", "SeedOssForCausalLM", ("rope_scaling",), attention_bias=True, attention_out_bias=False, head_dim=48,
        residual_dropout=0.1, pad_token_id=1, rope_scaling=None,
    ),
    "qwen2": _llama_like("qwen2", "Qwen2ForCausalLM", _NO_BIAS, use_sliding_window=True, sliding_window=512, max_window_layers=1),
    "qwen3": _llama_like(
        "qwen3", "Qwen3ForCausalLM", head_dim=48, max_window_layers=3, sliding_window=None, use_sliding_window=False,
        rope_scaling=None, tie_word_embeddings=True,
    ),
    "mixtral": _llama_like(
        "mixtral", "MixtralForCausalLM", _NO_BIAS, num_experts_per_tok=2, num_local_experts=4, output_router_logits=False,
        router_aux_loss_coef=0.02, sliding_window=None,
    ),
    "qwen3_moe": _llama_like(
        "qwen3_moe", "Qwen3MoeForCausalLM", head_dim=48, decoder_sparse_step=1, mlp_only_layers=[1], moe_intermediate_size=96,
        norm_topk_prob=True, num_experts=8, num_experts_per_tok=2, output_router_logits=False, router_aux_loss_coef=0.001,
        sliding_window=None, use_sliding_window=False, max_window_layers=3,
    ),
    "deepseek_v3": _llama_like("deepseek_v3", "DeepseekV3ForCausalLM", ("mlp_bias",), **_DEEPSEEK),
    "kimi_k2": _llama_like(
        "kimi_k2", "DeepseekV3ForCausalLM", ("mlp_bias",),
        **{**_DEEPSEEK, "n_group": 1, "topk_group": 1, "aux_loss_alpha": 0.001, "seq_aux": True, "num_nextn_predict_layers": 0,
           "q_lora_rank": None, "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}},
    ),
    "gpt_oss": _llama_like(
        "gpt_oss", "GptOssForCausalLM", attention_bias=True, head_dim=64, experts_per_token=2, initial_context_length=4096,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], num_experts_per_tok=2, num_local_experts=4,
        output_router_logits=False, pad_token_id=999, quantization_config={"quant_method": "mxfp4"}, router_aux_loss_coef=0.9,
        sliding_window=128, swiglu_limit=7.0,
        rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                      "rope_type": "yarn", "truncate": False},
    ),
    "gpt2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 999,
        "embd_pdrop": 0.1, "eos_token_id": 999, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 256, "n_embd": 192, "n_head": 12, "n_layer": 3, "n_positions": 256, "resid_pdrop": 0.1, "summary_activation": None,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 1000,
    },
    "bloom": {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"], "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 128, "n_layer": 3,
        "num_attention_heads": 8, "pad_token_id": 3, "pretraining_tp": 4, "seq_length": 2048, "slow_but_exact": False,
        "use_cache": True, "vocab_size": 1000,
    },
}  # fmt: skip
"""By ``model_type``."""

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, -1, 7, 64, 10**5, 10**5 + 1, 10**8, 10**8 + 1, 10**400, 0.0, 0.5, 1.0, 8.0, -2.5, 1e-320, 1e308,
    float("nan"), float("inf"), -float("inf"), "", "8", "silu", "\x1b[31m", "a" * 2000, [], [1], ["full_attention"], [None], {}, {"a": 1},
    [[[]]], {"rope_type": "linear"}, "sliding_attention",
)  # fmt: skip
"""What a key may hold by mistake."""

ADDED_KEYS: tuple[tuple[str, Any], ...] = (
    ("vision_config", {"hidden_size": 8}), ("index_topk", 2048), ("mamba_d_state", 16), ("attn_output_gate", True),
    ("qk_norm_type", "per_layer"), ("hidden_sizes", 64), ("num_hidden_layer", 4), ("head_dim", 32), ("sliding_window", 64),
    ("layer_types", ["linear_attention"]), ("partial_rotary_factor", 0.5), ("rope_parameters", {"rope_theta": 1e4, "rope_type": "default"}),
    ("rope_scaling", {"type": "longrope", "factor": 4.0}), ("num_experts", 4), ("num_local_experts", 4), ("hidden_size", 64),
    ("n_inner", 100),
    ("per_layer_config", {"0": {}}), ("mlp_bias", True), ("attention_bias", True), ("tie_word_embeddings", True), ("num_labels", 3),
    ("is_encoder_decoder", True), ("pad_token_id", 5000), ("temperature", 0.7), ("dtype", "float8_e4m3fn"), ("dtype", "float7"),
    ("quantization_config", {"quant_method": "awq", "bits": 4}), ("quantization_config", {"quant_method": "new"}), ("", 1),
    ("num_key_value_heads", 4), ("intermediate_size", 64), ("max_position_embeddings", 128), ("use_mrope", False), ("n_head", 4),
)  # fmt: skip
"""Keys that a config may have besides."""


def mutate(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy with one to three changes: a key taken out, another value or kind of value, another key."""
    changed = copy.deepcopy(config)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(changed, rng)
    return changed


def _change(config: dict[str, Any], rng: random.Random) -> None:
    inside = [value for value in config.values() if isinstance(value, dict) and value]
    place = rng.choice(inside) if inside and rng.random() < 0.15 else config
    key = rng.choice(list(place)) if place else "x"
    kind = rng.random()
    if kind < 0.2:
        place.pop(key, None)
    elif kind < 0.45:
        place[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    elif kind < 0.85:
        place[key] = _another(place.get(key), rng)
    else:
        added, value = rng.choice(ADDED_KEYS)
        place[added] = copy.deepcopy(value)


def _another(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, value * 2, value // 2, -value, rng.randint(1, 300)))
    if isinstance(value, float):
        return rng.choice((value * 2, value / 2, -value, value + 1))
    if isinstance(value, list):
        return rng.choice((value[:-1], value + value[:1], value[::-1], value * 2))
    return value


def random_config(model_type: str, rng: random.Random) -> dict[str, Any]:
    """A config of one family with other sizes, biases, ties, windows and experts; legal by construction."""
    config = copy.deepcopy(CONFIGS[model_type])
    config.pop("quantization_config", None)
    heads = rng.choice((2, 4, 6, 8))
    layers, head_dim, vocab = rng.randint(1, 7), 2 * rng.randint(2, 16), rng.randint(1000, 3000)
    hidden = heads * 2 * rng.randint(2, 16)
    if model_type in ("gpt2", "bloom"):
        return {**config, **_random_gpt(model_type, rng, layers, heads, hidden, vocab)}
    config |= {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": rng.randint(8, 300), "num_hidden_layers": layers,
        "num_attention_heads": heads, "tie_word_embeddings": rng.random() < 0.5, "rope_theta": rng.choice((10_000, 500_000.0)),
        "num_key_value_heads": rng.choice([divisor for divisor in (1, 2, 3, 4, 6, 8) if heads % divisor == 0]),
        "max_position_embeddings": rng.choice((128, 4096)),
    }  # fmt: skip
    for key in ("attention_bias", "attention_out_bias", "mlp_bias"):
        if key in config:
            config[key] = rng.random() < 0.5
    if model_type in ("llama", "mistral", "seed_oss", "qwen3", "mixtral", "qwen3_moe", "gpt_oss") and rng.random() < 0.7:
        config["head_dim"] = head_dim
    return config | _RANDOM_PARTS[model_type](rng, config)


def _random_gpt(model_type: str, rng: random.Random, layers: int, heads: int, hidden: int, vocab: int) -> dict[str, Any]:
    tied = {"tie_word_embeddings": rng.random() < 0.5, "vocab_size": vocab}
    if model_type == "bloom":
        return {"n_embed": hidden, "n_layer": layers, "num_attention_heads": heads, **tied}
    inner = rng.choice((None, rng.randint(4, 300)))
    activation = rng.choice(("gelu_new", "gelu", "relu", "gelu_pytorch_tanh"))
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": inner, "n_positions": rng.randint(1, 500)}
    return {**sizes, "activation_function": activation, **tied}


def _random_windows(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    window = rng.choice((None, rng.randint(1, 300)))
    layers: int = config["num_hidden_layers"]
    use = window is not None and rng.random() < 0.7
    part: dict[str, Any] = {"sliding_window": window, "use_sliding_window": use, "max_window_layers": rng.randint(0, 8)}
    if rng.random() < 0.4:
        kinds = ("full_attention", "sliding_attention") if use else ("full_attention",)
        part["layer_types"] = [rng.choice(kinds) for _ in range(layers)]
    return part


def _random_experts(rng: random.Random, key: str) -> dict[str, Any]:
    experts = rng.randint(1, 12)
    return {key: experts, "num_experts_per_tok": rng.randint(1, experts)}


def _random_qwen3_moe(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    layers: int = config["num_hidden_layers"]
    step = rng.randint(1, layers)
    moe = [index for index in range(layers) if (index + 1) % step == 0]
    dense = rng.sample(range(layers), rng.randint(0, layers - 1))
    window = {"sliding_window": rng.choice((None, 100)), "use_sliding_window": rng.random() < 0.5}
    return {
        "decoder_sparse_step": step, "mlp_only_layers": [index for index in dense if index != moe[0]],
        "moe_intermediate_size": rng.randint(4, 100), **_random_experts(rng, "num_experts"), **window,
    }  # fmt: skip


def _random_deepseek(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    groups, layers = rng.choice((1, 2, 4)), config["num_hidden_layers"]
    experts = groups * rng.randint(2, 5)
    chosen = rng.randint(1, groups)
    return {
        "num_key_value_heads": config["num_attention_heads"], "n_group": groups, "topk_group": chosen, "n_routed_experts": experts,
        "num_experts_per_tok": rng.randint(1, experts // groups * chosen), "n_shared_experts": rng.randint(0, 3),
        "first_k_dense_replace": rng.randint(0, layers - 1), "moe_intermediate_size": rng.randint(4, 100),
        "kv_lora_rank": rng.randint(4, 64), "q_lora_rank": rng.choice((None, rng.randint(4, 64))), "qk_nope_head_dim": rng.randint(2, 32),
        "qk_rope_head_dim": 2 * rng.randint(1, 16), "v_head_dim": rng.randint(2, 40), "num_nextn_predict_layers": rng.randint(0, 2),
        "rope_interleave": rng.random() < 0.5,
    }  # fmt: skip


def _random_gpt_oss(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    layers: int = config["num_hidden_layers"]
    kinds = [rng.choice(("full_attention", "sliding_attention")) for _ in range(layers)]
    experts = _random_experts(rng, "num_local_experts")
    copied = {"experts_per_token": experts["num_experts_per_tok"]}
    return {**experts, **copied, "layer_types": rng.choice((None, kinds)), "sliding_window": rng.randint(1, 300)}


_RANDOM_PARTS: dict[str, Callable[[random.Random, dict[str, Any]], dict[str, Any]]] = {
    "llama": lambda rng, config: {"rope_scaling": rng.choice((None, config["rope_scaling"], {"type": "linear", "factor": 2.0}))},
    "mistral": lambda rng, _: {"sliding_window": rng.choice((None, rng.randint(1, 300)))},
    "seed_oss": lambda rng, _: {"rope_scaling": rng.choice((None, {"type": "dynamic", "factor": 3.0}))},
    "qwen2": _random_windows,
    "qwen3": _random_windows,
    "mixtral": lambda rng, _: {**_random_experts(rng, "num_local_experts"), "sliding_window": rng.choice((None, 77))},
    "qwen3_moe": _random_qwen3_moe,
    "deepseek_v3": _random_deepseek,
    "kimi_k2": _random_deepseek,
    "gpt_oss": _random_gpt_oss,
}
