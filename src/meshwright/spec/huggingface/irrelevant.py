"""Keys of a config.json that change nothing that Meshwright plans: tokens, generation, regularisation, tools.

Facts from transformers 5.24: the fields of ``PreTrainedConfig`` and of the families' own classes with their types, and
the keys that its loader takes out of a config for generation. Older releases wrote more of them; those are listed too.
A key that is in no list is refused: it may change the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.spec.huggingface.config import Config

__all__ = ["BASE", "DECODER", "NULL_DROPOUT", "check_irrelevant"]

_ANY = "any"
_FLAG = "true or false"
_NUMBER = "a number"
_FRACTION = "a number from 0 to 1"
_INTEGER = "a whole number"
_TOKENS = "a token or an array of tokens"
_TEXT = "text"
_TABLE = "an object"
_OR_NULL = ", or null"

_GENERATION = (
    "assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length",
    "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
    "return_dict_in_generate", "suppress_tokens", "target_lookbehind", "temperature", "top_k", "top_p", "typical_p",
)  # fmt: skip

_BOOKKEEPING = (
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_experts_implementation_internal", "_flash_attn_2_enabled", "_name_or_path", "_output_attentions", "attn_implementation",
    "decoder_start_token_id", "experts_implementation", "finetuning_task", "generation_config", "ignore_index", "is_decoder",
    "max_sequence_length", "model_max_length", "model_name", "name_or_path", "num_labels", "output_attentions", "prefix",
    "sep_token_id", "task_specific_params", "tf_legacy_loss", "tie_last_hidden_states", "tokenizer_class",
    "tokenizer_model_max_length", "tokenizer_padding_side", "torchscript", "transformers.js_config", "unk_token_id",
    "unsloth_fixed", "unsloth_version", "use_bfloat16", "vocab_file",
)  # fmt: skip

BASE: Mapping[str, str] = {
    **dict.fromkeys(_GENERATION, _ANY),
    **dict.fromkeys(_BOOKKEEPING, _ANY),
    "transformers_version": _TEXT + _OR_NULL,
    "output_hidden_states": _FLAG + _OR_NULL,
    "return_dict": _FLAG + _OR_NULL,
    "chunk_size_feed_forward": _INTEGER,
    "id2label": _TABLE + _OR_NULL,
    "label2id": _TABLE + _OR_NULL,
    "problem_type": _ANY,
    "use_cache": _FLAG,
    "initializer_range": _FRACTION,
    "bos_token_id": _INTEGER + _OR_NULL,
    "eos_token_id": _TOKENS + _OR_NULL,
}
"""Irrelevant in every family, and the type that transformers demands."""

DECODER: Mapping[str, str] = {
    **BASE,
    "attention_dropout": _FRACTION,
    "pretraining_tp": _INTEGER + _OR_NULL,
    "output_router_logits": _FLAG,
}
"""Irrelevant in the families that follow Llama."""

NULL_DROPOUT: Mapping[str, str] = {**DECODER, "attention_dropout": _FRACTION + _OR_NULL}
"""The same where transformers takes null for the dropout."""


def check_irrelevant(config: Config, key: str, irrelevant: Mapping[str, str]) -> bool:
    """Whether ``key`` is irrelevant; a value that transformers would refuse is noted."""
    if key not in irrelevant:
        return False
    legal, value = irrelevant[key], config.values[key]
    null_is_legal = legal == _ANY or legal.endswith(_OR_NULL)
    if not (null_is_legal if value is None else _fits(value, legal.removesuffix(_OR_NULL))):
        config.note(key, legal, problem="is null" if value is None else "")
    return True


def _fits(value: object, kind: str) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    is_number = is_integer or isinstance(value, float)
    if kind == _TOKENS:
        return is_integer or (isinstance(value, list) and all(_fits(token, _INTEGER) for token in value))
    return {
        _ANY: True,
        _FLAG: isinstance(value, bool),
        _INTEGER: is_integer,
        _NUMBER: is_number,
        _FRACTION: isinstance(value, int | float) and is_number and 0 <= value <= 1,
        _TEXT: isinstance(value, str),
        _TABLE: isinstance(value, dict),
    }[kind]

