"""Keys that ask for a part of a model that Meshwright does not plan yet, and what that part is.

A config with such a key is refused by its name, never planned as if it were plain.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from fnmatch import fnmatchcase

from meshwright.spec.tables import Table

__all__ = ["FEATURES", "LAYER_TYPES", "Feature", "find_feature", "note_all_features", "note_feature", "note_layer_types"]

LAYER_TYPES = ("full_attention", "sliding_attention")
"""The kinds of attention that ``layer_types`` may name."""

_MODELS_INSIDE = ("text_config", "llm_config", "decoder_config")


@dataclass(frozen=True)
class Feature:
    """A part of a model.

    Attributes:
        what: the part, in words.
        keys: the keys that ask for it; ``*`` stands for any characters.
        off: values beside null with which the key asks for nothing.
        planned: whether families that have it are planned; then it is wrong in the others only.
    """

    what: str
    keys: tuple[str, ...]
    off: tuple[object, ...] = ()
    planned: bool = False

    def is_off(self, value: object) -> bool:
        """Whether the key is there but the part is not."""
        return value is None or any(value == off and type(value) is type(off) for off in self.off)


FEATURES: tuple[Feature, ...] = (
    Feature("a vision tower", ("vision_config", "vision_*", "visual", "image_*", "video_*", "mm_*", "merge_kernel_size",
                               "use_unified_vision_chunk", "media_placeholder_token_id")),
    Feature("an audio tower", ("audio_config", "audio_*", "thinker_config", "talker_config", "code2wav_config")),
    Feature("a model inside a model", ("text_config", "encoder", "decoder", "encoder_config", "decoder_config", "llm_config")),
    Feature("an encoder", ("is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder",
                           "cross_attention_layers"), (False, [])),
    Feature("linear attention", ("linear_*", "full_attention_interval", "*lightning*", "kda_*", "gdn_*")),
    Feature("a state-space (Mamba) layer", ("mamba_*", "*_mamba*", "ssm_*", "state_size", "conv_kernel", "d_conv", "d_state")),
    Feature("convolution layers", ("conv_*", "use_conv"), (False,)),
    Feature("a sparse attention indexer", ("index_*", "indexer_*", "nsa_*", "*sparse_attention*"), (False,)),
    Feature("layers of mixed kinds", ("layers_block_type", "attn_type_list", "hybrid_*", "block_types", "block_configs", "layers_types",
                                      "no_rope_layers", "no_rope_layer_interval", "nope_layer_interval")),
    Feature("settings that differ by layer", ("per_layer_config", "*_per_layer", "*_per_layer_*", "per_layer_*",
                                              "scale_attn_by_inverse_layer_idx"), (False, {}, [])),
    Feature("chunked or local attention", ("attention_chunk_size", "local_attention*", "global_attn_every_n_layers",
                                           "sliding_window_pattern", "use_sliding_window", "window_size"), (False,)),
    Feature("a sliding window", ("sliding_window",), planned=True),
    Feature("a gate on the attention's output", ("attn_output_gate", "attention_output_gate", "use_gated_attention"), (False,)),
    Feature("a norm of queries and keys", ("qk_norm", "qk_norm_type", "use_qk_norm", "qk_layernorm", "use_qk_norm*"), (False,)),
    Feature("a clamp of attention inputs or scores", ("clip_qkv", "*softcapping", "*softcap*", "logit_cap*")),
    Feature("attention sinks", ("sinks", "attention_sink*", "add_swa_attention_sink_bias"), (False,)),
    Feature("scaled embeddings, residuals or logits", ("embedding_multiplier", "residual_multiplier", "attention_multiplier",
                                                       "logits_scaling", "logit_scale", "scale_emb", "scale_depth", "mup_*",
                                                       "scale_embedding", "query_pre_attn_scalar", "dim_model_base")),
    Feature("rotary positions on part of a head", ("rotary_dim", "rotary_pct", "rotary_percent", "rotary_emb_*")),
    Feature("multimodal rotary positions", ("use_mrope", "mrope_*"), (False,)),
    Feature("interleaved rotary positions", ("rope_interleaved", "rope_interleave"), (False,), planned=True),
    Feature("parallel attention and MLP", ("parallel_attn", "use_parallel_residual", "parallel_residual", "new_decoder_architecture"),
            (False,)),
    Feature("a shared expert", ("shared_expert_intermediate_size", "shared_intermediate_size", "n_shared_experts",
                                "num_shared_experts", "shared_expert*"), (0,), planned=True),
    Feature("zero-computation or null experts", ("zero_expert_*", "zero_experts*", "num_zero_experts"), (0,)),
    Feature("another router", ("scoring_func", "score_func", "use_routing_bias", "moe_router_*", "topk_method"), (False,), planned=True),
    Feature("a mixture of experts", ("num_experts", "num_local_experts", "n_routed_experts", "moe_*", "num_experts_per_tok",
                                     "num_experts_per_token", "expert_*", "ffn_config"), (0,), planned=True),
    Feature("latent attention", ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), planned=True),
    Feature("multi-token prediction", ("mtp_*", "num_mtp_*", "num_nextn_predict_layers", "use_mtp", "*_mtp_*"), (0, False), planned=True),
    Feature("a draft head for speculation", ("eagle_config", "dflash_config", "dspark_config", "draft_vocab_size", "target_layer_ids",
                                             "medusa_*", "fc_input_size", "num_medusa_heads")),
    Feature("heads or layers taken out", ("pruned_heads",), ({},)),
    Feature("attention in both directions", ("is_causal",), (True,)),
    Feature("attention in both directions", ("use_bidirectional_attention", "bidirectional"), (False,)),
    Feature("weights in another library's quantised form", ("quantization", "compression_config", "bnb_config")),
    Feature("adapters", ("lora_*", "adapter_*", "peft_type", "adapters"), ({},)),
)  # fmt: skip


def find_feature(key: str) -> Feature | None:
    """The part that ``key`` asks for, None if it is not known to ask for one."""
    for feature in FEATURES:
        if any(fnmatchcase(key, pattern) for pattern in feature.keys):
            return feature
    return None


def note_feature(table: Table, key: str) -> bool:
    """Whether ``key`` is known to be about such a part; it is noted if it asks for it."""
    feature = find_feature(key)
    if feature is None:
        return False
    if not feature.is_off(table.values[key]):
        off = f" (absent, null or {json.dumps(feature.off[0])})" if feature.off else ""
        where = "for this model_type" if feature.planned else "yet"
        table.note(key, "a model without it" + off, problem=f"asks for {feature.what}, which is not planned {where}")
    return True


def note_all_features(table: Table, irrelevant: Container[str]) -> None:
    """Note every part of a config that asks for one, in the models inside it too. For families that are not read."""
    for key in table:
        feature = find_feature(key)
        if key == "layer_types":
            note_layer_types(table)
        elif key not in irrelevant and feature is not None and not feature.planned:
            note_feature(table, key)
        if key in _MODELS_INSIDE and (inside := table.table(key, required=False)):
            note_all_features(inside, irrelevant)


def note_layer_types(table: Table) -> bool:
    """Whether ``layer_types`` names kinds of attention that are planned; the others are noted."""
    types = table.values.get("layer_types")
    kinds = [kind for kind in types if kind not in LAYER_TYPES] if isinstance(types, list) else []
    if kinds:
        first = kinds[0] if isinstance(kinds[0], str) and kinds[0].isidentifier() and len(kinds[0]) < 40 else "other"
        table.note("layer_types", f"an array of {' '.join(LAYER_TYPES)}", problem=f"asks for {first} layers, which are not planned yet")
    return not kinds
