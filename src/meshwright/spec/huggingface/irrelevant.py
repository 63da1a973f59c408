"""Keys of a config.json that change nothing that Meshwright plans: tokens, generation, regularisation, tools.

Facts from transformers 5.24: the fields of ``PreTrainedConfig`` and of the families' own classes with their types, and
the keys that its loader takes out of a config for generation. Older releases wrote more of them; those are listed too.
A key that is in no list is refused: it may change the architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.spec.huggingface.config import Config

__all__ = ["BASE", "DECODER", "NULL_DROPOUT", "check_irrelevant"]

# The types of values, in the words that a mistake tells.
ANY = "anything"
FLAG = "true or false"
NUMBER = "a number"
FRACTION = "a number from 0 to 1"
INTEGER = "a whole number"
TOKENS = "a token or an array of tokens"
TEXT = "text"
TABLE = "an object"
LABELS = "an object of numbered labels"
_PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
PROBLEM = "one of " + " ".join(_PROBLEM_TYPES)
OR_NULL = ", or null"

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
    "_experts_implementation_internal", "_flash_attn_2_enabled", "_name_or_path", "_num_labels", "_output_attentions",
    "attn_implementation", "decoder_start_token_id", "experts_implementation", "finetuning_task", "generation_config",
    "gradient_checkpointing", "ignore_index", "is_decoder",
    "max_sequence_length", "model_max_length", "model_name", "name_or_path", "output_attentions", "prefix",
    "sep_token_id", "task_specific_params", "tf_legacy_loss", "tie_last_hidden_states", "tokenizer_class",
    "tokenizer_model_max_length", "tokenizer_padding_side", "torchscript", "transformers.js_config", "unk_token_id",
    "unsloth_fixed", "unsloth_version", "use_bfloat16", "vocab_file",
)  # fmt: skip

BASE: Mapping[str, str] = {
    **dict.fromkeys(_GENERATION, ANY),
    **dict.fromkeys(_BOOKKEEPING, ANY),
    "transformers_version": TEXT + OR_NULL,
    "output_hidden_states": FLAG + OR_NULL,
    "return_dict": FLAG + OR_NULL,
    "chunk_size_feed_forward": INTEGER,
    "id2label": LABELS + OR_NULL,
    "label2id": TABLE + OR_NULL,
    "num_labels": INTEGER,
    "problem_type": PROBLEM + OR_NULL,
    "use_cache": FLAG,
    "initializer_range": FRACTION,
    "bos_token_id": INTEGER + OR_NULL,
    "eos_token_id": TOKENS + OR_NULL,
}
"""Irrelevant in every family, and the type that transformers demands."""

DECODER: Mapping[str, str] = {
    **BASE,
    "attention_dropout": FRACTION,
    "pretraining_tp": INTEGER + OR_NULL,
    "output_router_logits": FLAG,
}
"""Irrelevant in the families that follow Llama."""

NULL_DROPOUT: Mapping[str, str] = {**DECODER, "attention_dropout": FRACTION + OR_NULL}
"""The same where transformers takes null for the dropout."""


def check_irrelevant(config: Config, key: str, irrelevant: Mapping[str, str]) -> bool:
    """Whether ``key`` is irrelevant; a value that transformers would refuse is noted."""
    if key not in irrelevant:
        return False
    legal, value = irrelevant[key], config.values[key]
    null_is_legal = legal == ANY or legal.endswith(OR_NULL)
    if not (null_is_legal if value is None else _FITS[legal.removesuffix(OR_NULL)](value)):
        config.note(key, legal, problem="is null" if value is None else "")
    return True


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


_FITS: Mapping[str, Callable[[object], bool]] = {
    ANY: lambda _: True,
    FLAG: lambda value: isinstance(value, bool),
    NUMBER: lambda value: isinstance(value, float) or _is_integer(value),
    FRACTION: _is_fraction,
    INTEGER: _is_integer,
    TOKENS: lambda value: all(map(_is_integer, value)) if isinstance(value, list) else _is_integer(value),
    TEXT: lambda value: isinstance(value, str),
    TABLE: lambda value: isinstance(value, dict),
    LABELS: lambda value: isinstance(value, dict) and all(label.isdecimal() for label in value),
    PROBLEM: lambda value: isinstance(value, str) and value in _PROBLEM_TYPES,
}
