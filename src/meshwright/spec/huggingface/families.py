"""The families of config.json that are read: one line for each ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from meshwright.spec.huggingface.config import Config
from meshwright.spec.huggingface.deepseek import read_deepseek_v3
from meshwright.spec.huggingface.gpt2 import read_bloom, read_gpt2
from meshwright.spec.huggingface.irrelevant import ANY, BASE, DECODER, FLAG, FRACTION, INTEGER, NULL_DROPOUT, NUMBER, OR_NULL, TEXT
from meshwright.spec.huggingface.llama import read_llama, read_mistral, read_qwen2, read_qwen3, read_seed_oss
from meshwright.spec.huggingface.moe import read_gpt_oss, read_mixtral, read_qwen3_moe
from meshwright.spec.model import Model

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How configs of one ``model_type`` are read.

    Attributes:
        read: reads the keys and returns the model, which holds stand-ins if it noted mistakes.
        architecture: the class in transformers; ``architectures`` may name it, with or without its head.
        headless: its class without a head.
        aliases: other names of keys: transformers' ``attribute_map``, turned round.
        keys: the family's key for each field that a rule across the model may name (spec/model_rules.py).
        irrelevant: keys that change nothing that is planned, with their types; published files hold some that
            transformers itself does not know.
    """

    read: Callable[[Config], Model]
    architecture: str
    headless: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str]
    irrelevant: Mapping[str, str] = field(default_factory=lambda: DECODER)


_KEYS = {
    "layers": "num_hidden_layers",
    "attention.num_heads": "num_attention_heads",
    "attention.num_kv_heads": "num_key_value_heads",
    "attention.head_dim": "head_dim",
    "moe.top_k": "num_experts_per_tok",
}
_LOCAL_EXPERTS = {**_KEYS, "moe.num_experts": "num_local_experts"}
_DEEPSEEK_KEYS = {
    **_KEYS,
    "attention.mla.qk_nope_head_dim": "qk_nope_head_dim",
    "attention.mla.qk_rope_head_dim": "qk_rope_head_dim",
    "moe.num_experts": "n_routed_experts",
    "moe.num_groups": "n_group",
    "moe.top_groups": "topk_group",
}
_WINDOWLESS_MOE = {**DECODER, "max_window_layers": ANY}
"""Qwen's files say max_window_layers, but transformers gives every layer of qwen3_moe the window."""

_DEEPSEEK = Family(
    read=read_deepseek_v3,
    architecture="DeepseekV3ForCausalLM",
    headless="DeepseekV3Model",
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    keys=_DEEPSEEK_KEYS,
    # ep_size is how it was served; aux_loss_alpha and seq_aux belong to the training recipe (a loss of each sequence)
    irrelevant={**NULL_DROPOUT, "ep_size": ANY, "aux_loss_alpha": ANY, "seq_aux": ANY},
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        read=read_llama, architecture="LlamaForCausalLM", headless="LlamaModel", keys=_KEYS,
        irrelevant={**NULL_DROPOUT, "is_llama_config": ANY},
    ),
    "mistral": Family(read=read_mistral, architecture="MistralForCausalLM", headless="MistralModel", keys=_KEYS),
    "seed_oss": Family(
        read=read_seed_oss, architecture="SeedOssForCausalLM", headless="SeedOssModel", keys=_KEYS,
        irrelevant={**DECODER, "residual_dropout": FRACTION, "pretraining_tp": INTEGER},
    ),
    "qwen2": Family(read=read_qwen2, architecture="Qwen2ForCausalLM", headless="Qwen2Model", keys=_KEYS),
    "qwen3": Family(read=read_qwen3, architecture="Qwen3ForCausalLM", headless="Qwen3Model", keys=_KEYS),
    "mixtral": Family(
        read=read_mixtral, architecture="MixtralForCausalLM", headless="MixtralModel",
        aliases={"num_experts": "num_local_experts"}, keys=_LOCAL_EXPERTS,
        irrelevant={**DECODER, "router_jitter_noise": NUMBER},
    ),
    "qwen3_moe": Family(
        read=read_qwen3_moe, architecture="Qwen3MoeForCausalLM", headless="Qwen3MoeModel",
        aliases={"num_local_experts": "num_experts"}, keys={**_KEYS, "moe.num_experts": "num_experts"},
        irrelevant=_WINDOWLESS_MOE,
    ),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "gpt_oss": Family(
        read=read_gpt_oss, architecture="GptOssForCausalLM", headless="GptOssModel",
        aliases={"num_experts": "num_local_experts"}, keys=_LOCAL_EXPERTS,
        irrelevant={**DECODER, "initial_context_length": ANY},
    ),
    "gpt2": Family(
        read=read_gpt2, architecture="GPT2LMHeadModel", headless="GPT2Model",
        aliases={"hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
                 "num_hidden_layers": "n_layer"},
        keys={"hidden_size": "n_embd", "attention.num_heads": "n_head", "layers": "n_layer"},
        # n_ctx repeats n_positions in OpenAI's files and is not read; n_special counts special tokens inside vocab_size;
        # output_past is use_cache's old name; summary_* shape another head
        irrelevant={
            **BASE,
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout"), FRACTION),
            **dict.fromkeys(("n_ctx", "n_special", "output_past", "predict_special_tokens"), ANY),
            **dict.fromkeys(("summary_use_proj", "summary_proj_to_labels"), FLAG),
            "summary_type": TEXT, "summary_activation": TEXT + OR_NULL, "pad_token_id": INTEGER + OR_NULL,
        },
    ),
    "bloom": Family(
        read=read_bloom, architecture="BloomForCausalLM", headless="BloomModel",
        aliases={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        keys={"attention.num_heads": "n_head", "layers": "n_layer"},
        # the kernels and the arithmetic of the code that trained it
        irrelevant={
            **BASE,
            **dict.fromkeys(("attention_dropout", "hidden_dropout"), FRACTION),
            **dict.fromkeys(("attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion", "offset_alibi",
                             "skip_bias_add", "skip_bias_add_qkv"), ANY),
            "pretraining_tp": INTEGER, "slow_but_exact": FLAG, "pad_token_id": INTEGER + OR_NULL,
        },
    ),
}  # fmt: skip
"""By ``model_type``. kimi_k2 is DeepSeek-V3 in all but sizes, and transformers reads it so."""
