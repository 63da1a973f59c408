"""Which layers see only a window, family by family."""

from __future__ import annotations

import pytest

from changed_configs import only_mistake, read, windows


def test_mistral_has_one_window_and_4096_unless_told() -> None:
    assert windows(read("mistral")) == [1024] * 3
    assert windows(read("mistral", sliding_window=None)) == [None] * 3
    assert windows(read("mistral", without=("sliding_window",))) == [4096] * 3


def test_qwen_windows_need_the_switch_and_begin_late() -> None:
    assert windows(read("qwen2")) == [None, 512, 512]
    assert windows(read("qwen2", use_sliding_window=False)) == [None] * 3
    assert windows(read("qwen2", layer_types=["sliding_attention", "full_attention", "full_attention"])) == [512, None, None]
    assert windows(read("qwen3_moe", use_sliding_window=True, sliding_window=9)) == [9] * 3


def test_gpt_oss_alternates() -> None:
    assert windows(read("gpt_oss")) == [128, None, 128]
    assert windows(read("gpt_oss", without=("layer_types",), num_hidden_layers=4)) == [128, None, 128, None]


def test_layer_types_of_a_family_that_does_not_use_them() -> None:
    assert read(layer_types=["full_attention"] * 3) == read()
    assert only_mistake(layer_types=["sliding_attention"] * 3).key == "layer_types"


def test_a_window_counts_the_query_itself() -> None:
    masks = pytest.importorskip("transformers.masking_utils")
    sees = masks.sliding_window_overlay(5)
    assert sum(sees(0, 0, 20, position) and position <= 20 for position in range(40)) == 5
