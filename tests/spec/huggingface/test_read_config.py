"""What a config.json says, key by key, and how its mistakes are told."""

from __future__ import annotations

from typing import Any

import pytest

from changed_configs import mistakes, only_mistake, read
from meshwright.spec.huggingface import FAMILIES
from model_configs import CONFIGS

# --- all mistakes of a file together -----------------------------------------------------------------------------------


def test_every_mistake_of_a_config_is_told() -> None:
    found = mistakes(hidden_size="256", num_hidden_layers=-1, rope_theta=float("nan"), vision_config={}, hidden_sise=3, use_cache=1)
    assert {mistake.key for mistake in found} == {
        "hidden_size", "num_hidden_layers", "rope_theta", "vision_config", "hidden_sise", "use_cache",
    }  # fmt: skip
    assert all(mistake.file == "config.json" and mistake.legal for mistake in found)
    by_key = {mistake.key: mistake for mistake in found}
    assert by_key["hidden_size"].value == "256"
    assert by_key["hidden_size"].hint == "write it without quotes"
    assert by_key["num_hidden_layers"].legal == "a whole number from 1 to 100000"
    assert by_key["hidden_sise"].hint == "did you mean `hidden_size`?"
    assert "vision tower" in by_key["vision_config"].problem


@pytest.mark.parametrize("value", [True, "8", 8.0, 0, -8, 10**8 + 1, [8], {}, float("nan"), float("inf"), None])
@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "vocab_size", "intermediate_size", "max_position_embeddings"])
def test_a_size_is_a_whole_number_in_range(key: str, value: Any) -> None:
    found = mistakes(**{key: value})
    assert found[0].key == key


def test_layers_end_at_10_to_the_5() -> None:
    assert read(num_hidden_layers=10**5).num_layers == 10**5
    assert only_mistake(num_hidden_layers=10**5 + 1).key == "num_hidden_layers"


def test_a_tensor_that_cannot_be_counted_is_refused() -> None:
    mistake = only_mistake(vocab_size=10**8, hidden_size=10**8, num_attention_heads=1, num_key_value_heads=1, head_dim=2)
    assert mistake.key == "hidden_size"
    assert "2^53" in mistake.legal


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["initializer_range", "temperature", "task_specific_params"])
def test_nan_and_infinity_are_wrong_anywhere(where: str, value: float) -> None:
    inside = {"a": [1, value]} if where == "task_specific_params" else value
    mistake = only_mistake(**{where: inside})
    assert mistake.key == ("task_specific_params.a[1]" if where == "task_specific_params" else where)


# --- keys that are not known, and parts that are not planned -----------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("vision_config", {"depth": 2}, "a vision tower"),
        ("index_topk", 2048, "a sparse attention indexer"),
        ("mamba_d_state", 16, "a state-space (Mamba) layer"),
        ("linear_num_value_heads", 4, "linear attention"),
        ("attn_output_gate", True, "a gate on the attention's output"),
        ("qk_norm_type", "per_layer", "a norm of queries and keys"),
        ("per_layer_config", {"0": {"hidden_size": 8}}, "settings that differ by layer"),
        ("sliding_window", 1024, "a sliding window"),
        ("num_experts", 8, "a mixture of experts"),
        ("kv_lora_rank", 64, "latent attention"),
        ("pruned_heads", {"0": [1]}, "heads or layers taken out"),
        ("is_encoder_decoder", True, "an encoder"),
        ("final_logit_softcapping", 30.0, "a clamp"),
        ("quantization", {"bits": 4}, "weights in another library's quantised form"),
    ],
)
def test_a_part_that_is_not_planned_is_refused_by_its_key(key: str, value: Any, part: str) -> None:
    mistake = only_mistake(**{key: value})
    assert mistake.key == key
    assert mistake.problem.startswith(f"asks for {part}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vision_config", None),
        ("attn_output_gate", False),
        ("pruned_heads", {}),
        ("num_experts", 0),
        ("use_mrope", False),
        ("whatever", None),
    ],
)
def test_a_part_that_is_switched_off_is_no_part(key: str, value: Any) -> None:
    assert read(**{key: value}) == read()


@pytest.mark.parametrize("key", ["temperature", "_name_or_path", "unk_token_id", "unsloth_version", "bad_words_ids"])
def test_keys_for_generation_and_tools_change_nothing(key: str) -> None:
    assert read(**{key: 1}) == read()


def test_an_unknown_key_is_refused_even_if_nothing_is_like_it() -> None:
    mistake = only_mistake(zzz=1)
    assert mistake.key == "zzz"
    assert "hidden_size" in mistake.legal
    assert "may change the model" in mistake.hint


@pytest.mark.parametrize(
    ("written", "meant"), [("qwen3-moe", "qwen3_moe"), ("Llama", "llama"), ("mixtrl", "mixtral"), ("gptoss", "gpt_oss")]
)
def test_a_slip_in_the_model_type(written: str, meant: str) -> None:
    found = mistakes(model_type=written)
    assert found[0].key == "model_type"
    assert found[0].hint == f"did you mean `{meant}`?"


@pytest.mark.parametrize(
    "model_type",
    ["qwen3_5_moe", "llama4", "deepseek_v32", "gemma3", "mistral3", "minimax_m2", "llava", "mamba", "qwen2_moe", "qwen3_next"],
)
def test_another_model_is_never_taken_for_a_slip(model_type: str) -> None:
    assert mistakes(model_type=model_type)[0].hint == "a decoder of the same parts can be written as a model's TOML file"


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen3", {"use_qk_norm": True, "qkv_bias": False}),
        ("qwen3_moe", {"use_qk_norm": True, "qkv_bias": False, "shared_expert_intermediate_size": 0}),  # Qwen3-Coder-480B-A35B
        ("gpt2", {"n_special": 0, "output_past": True, "predict_special_tokens": True}),  # gpt2-medium, gpt2-xl
    ],
)
def test_keys_of_published_files_that_repeat_what_is_built(model_type: str, changes: dict[str, Any]) -> None:
    assert read(model_type, **changes) == read(model_type)


@pytest.mark.parametrize(("key", "value"), [("use_qk_norm", False), ("qkv_bias", True)])
@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_a_repeated_key_that_says_otherwise_is_refused(model_type: str, key: str, value: bool) -> None:
    assert [mistake.key for mistake in mistakes(model_type, **{key: value})] == [key]


def test_a_config_without_model_type_is_told_what_its_class_is_called() -> None:
    mistake = mistakes("mixtral", without=("model_type",))[0]
    assert mistake.key == "model_type"
    assert mistake.hint == "did you mean `mixtral`?"


def test_parts_inside_another_family_are_named() -> None:
    inside = {"model_type": "qwen3_next", "linear_num_key_heads": 4, "layer_types": ["full_attention", "linear_attention"], "index_topk": 8}
    found = mistakes(model_type="some_vl", vision_config={}, text_config=inside)
    told = {mistake.key for mistake in found}
    assert {"model_type", "vision_config", "text_config.linear_num_key_heads", "text_config.layer_types", "text_config.index_topk"} <= told


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "LlamaForCausalLMEagle3", "LlamaRewardModel"])
def test_another_head_is_refused(name: str) -> None:
    mistake = only_mistake(architectures=[name])
    assert mistake.key == "architectures"
    assert name in mistake.problem


def test_a_decoder_without_head_gets_one_and_says_so() -> None:
    model = read(architectures=["LlamaModel"])
    assert model == read()
    assert model.assumed == ("architectures = LlamaForCausalLM",)


def test_code_of_its_own_is_refused() -> None:
    mistake = only_mistake(auto_map={"AutoModelForCausalLM": "modeling_new.NewForCausalLM"})
    assert mistake.key == "auto_map"


# --- sizes that do not fit together ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "changes", "key"),
    [
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("llama", {"hidden_size": 255}, "hidden_size"),
        ("llama", {"hidden_size": 260, "head_dim": 32}, "hidden_size"),
        ("llama", {"head_dim": 33}, "head_dim"),
        ("mistral", {"hidden_size": 260}, "hidden_size"),
        ("gpt2", {"n_embd": 193}, "n_embd"),
        ("bloom", {"n_embed": 130}, "n_embed"),
        ("bloom", {"n_inner": 100}, "n_inner"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ("qwen3_moe", {"mlp_only_layers": [3]}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": [0, 1, 2]}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 4}, "decoder_sparse_step"),
        ("deepseek_v3", {"first_k_dense_replace": 5}, "first_k_dense_replace"),
        ("deepseek_v3", {"first_k_dense_replace": 4}, "num_nextn_predict_layers"),
        ("deepseek_v3", {"num_key_value_heads": 4}, "num_key_value_heads"),
        ("deepseek_v3", {"n_group": 3}, "n_group"),
        ("deepseek_v3", {"n_group": 16, "num_experts_per_tok": 1}, "n_group"),
        ("deepseek_v3", {"topk_group": 5}, "topk_group"),
        ("deepseek_v3", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("deepseek_v3", {"qk_rope_head_dim": 15}, "qk_rope_head_dim"),
        ("deepseek_v3", {"head_dim": 32}, "head_dim"),
        ("deepseek_v3", {"qk_head_dim": 32}, "qk_head_dim"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gpt_oss", {"sliding_window": None}, "layer_types"),
        ("gpt_oss", {"swiglu_alpha": 1.5}, "swiglu_alpha"),
        ("gpt_oss", {"experts_per_token": 3}, "experts_per_token"),
        ("gpt_oss", {"pad_token_id": 1000}, "pad_token_id"),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "layer_types"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("gpt2", {"activation_function": "silu"}, "activation_function"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
    ],
)  # fmt: skip
def test_what_does_not_fit(model_type: str, changes: dict[str, Any], key: str) -> None:
    assert only_mistake(model_type, **changes).key == key


def test_a_default_that_does_not_fit_is_named() -> None:
    """DeepSeek's class has 128 key-value heads where the key is left out, whatever the number of heads."""
    mistake = only_mistake("deepseek_v3", without=("num_key_value_heads",))
    assert mistake.key == "num_key_value_heads"
    assert mistake.hint == "it is left out, and transformers takes 128"


# --- other names of keys -----------------------------------------------------------------------------------------------


def test_other_names_mean_the_same() -> None:
    renamed = {
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_positions": "max_position_embeddings",
    }
    changes = {new: CONFIGS["gpt2"][old] for old, new in renamed.items()}
    assert read("gpt2", without=tuple(renamed), **changes) == read("gpt2")


def test_a_mistake_has_the_name_that_was_written() -> None:
    assert only_mistake("gpt2", without=("n_layer",), num_hidden_layers="3").key == "num_hidden_layers"


def test_two_names_must_agree() -> None:
    assert read("mixtral", num_experts=4) == read("mixtral")
    mistake = only_mistake("mixtral", num_experts=5)
    assert (mistake.key, mistake.problem) == ("num_experts", "contradicts num_local_experts")


# --- families ----------------------------------------------------------------------------------------------------------


def test_what_the_families_share_and_do_not() -> None:
    assert {name for name in CONFIGS if read(name).attention.qkv_bias} == {"seed_oss", "qwen2", "gpt_oss", "gpt2", "bloom"}
    assert {name for name in CONFIGS if read(name).attention.out_bias} == {"gpt_oss", "gpt2", "bloom"}
    assert {name for name in CONFIGS if read(name).attention.qk_norm} == {"qwen3", "qwen3_moe"}
    assert {name for name in CONFIGS if read(name).attention.sinks} == {"gpt_oss"}
    assert {name for name in CONFIGS if read(name).attention.mla} == {"deepseek_v3", "kimi_k2"}
    assert {name for name in CONFIGS if read(name).moe} == {"mixtral", "qwen3_moe", "deepseek_v3", "kimi_k2", "gpt_oss"}
    assert {read(name).positions for name in ("gpt2", "bloom", "llama")} == {"learned", "alibi", "rope"}
    assert {name for name in CONFIGS if read(name).embedding_norm} == {"bloom"}
    assert set(CONFIGS) == set(FAMILIES)


def test_routers() -> None:
    scores = {name: moe.score for name in CONFIGS if (moe := read(name).moe)}
    assert scores == {
        "mixtral": "softmax", "qwen3_moe": "softmax", "gpt_oss": "softmax_topk", "deepseek_v3": "sigmoid", "kimi_k2": "sigmoid",
    }  # fmt: skip
    deepseek = read("deepseek_v3").moe
    assert deepseek is not None and deepseek.selection_bias and (deepseek.num_groups, deepseek.top_groups) == (4, 2)
    mixtral = read("mixtral").moe
    assert mixtral is not None and mixtral.norm_topk and mixtral.aux_loss_coefficient == 0.02


def test_shared_experts_are_one_wide_one() -> None:
    moe = read("deepseek_v3", n_shared_experts=3).moe
    assert moe is not None and moe.shared_ffn_size == 3 * 64


def test_all_dense_deepseek_has_no_experts() -> None:
    model = read("deepseek_v3", first_k_dense_replace=4, num_nextn_predict_layers=0)
    assert model.moe is None and not any(kind.moe for kind in model.layers)
