"""A model's counts in one object and one line."""

from __future__ import annotations

from meshwright.spec.huggingface import read_config
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model_summary import summarise


def test_a_dense_model() -> None:
    summary = summarise(resolve_model("llama-3.1-8b"))
    assert summary.parameters == summary.active_parameters == 8_030_261_248
    assert summary.mtp_parameters == 0
    assert str(summary) == "llama-3.1-8b: 8.03B parameters; layers 32 x dense, hidden 4096, vocabulary 128256"


def test_experts_and_prediction() -> None:
    summary = summarise(resolve_model("deepseek-v3"))
    assert summary.layers == ("3 x dense", "58 x moe")
    assert str(summary).startswith("deepseek-v3: 671B parameters, 37.6B active, 11.6B more in multi-token prediction;")


def test_what_was_assumed() -> None:
    model = read_config({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4}, "config.json", "tiny")
    assert summarise(model).assumed == ("vocab_size = 50257", "n_positions = 1024")
