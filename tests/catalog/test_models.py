"""The catalog of models: read by the same rules as a user's, equal to the published configs, with the published counts."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest

from meshwright.catalog import list_names
from meshwright.catalog import path as catalog_path
from meshwright.spec.huggingface import read_config
from meshwright.spec.load_model import resolve_model
from meshwright.spec.parameters import active_parameter_count, parameter_count
from shared_data import shared

NAMES = list_names("models")

PUBLISHED_CONFIGS = {
    "llama-3.1-8b": "meta-llama--Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama--Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama--Meta-Llama-3.1-405B",
    "mixtral-8x7b": "mistralai--Mixtral-8x7B-v0.1",
    "qwen3-0.6b": "Qwen--Qwen3-0.6B",
    "qwen3-32b": "Qwen--Qwen3-32B",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen--Qwen3-235B-A22B",
    "deepseek-v3": "deepseek-ai--DeepSeek-V3",
    "kimi-k2": "moonshotai--Kimi-K2-Instruct",
    "gpt-oss-120b": "openai--gpt-oss-120b",
}

COUNTS = {
    # parameters in the published checkpoints, masks and other buffers left out
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt2-xl": 1_557_611_200,
    "bloom-176b": 176_247_271_424,
}

ROUNDED = {
    # (parameters, active parameters) in units of 10^9 as their papers and cards state them, to the last digit given there
    "deepseek-v3": ("671", "37"),
    "kimi-k2": ("1026", "32"),
    "gpt-oss-20b": ("20.9", "3.6"),
    "gpt-oss-120b": ("116.8", "5.1"),
    "qwen3-30b-a3b": ("30.5", "3.3"),
    "qwen3-235b-a22b": ("235", "22"),
    "mixtral-8x7b": ("46.7", "12.9"),
    "mixtral-8x22b": ("141", "39"),
    "gpt3-175b": ("175", "175"),
    "mt-nlg-530b": ("530", "530"),
    "megatron-gpt-1t": ("1008", "1008"),
}
EMBEDDING_IS_NOT_ACTIVE = ("gpt-oss-20b", "gpt-oss-120b")
"""OpenAI's card leaves the embedding out of the active parameters."""


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_read_and_has_its_source(name: str) -> None:
    model = resolve_model(name)
    assert model.name == name
    assert model.source
    values = tomllib.loads(catalog_path("models", name).read_text())
    for key in values.get("sources", {}):
        table = values
        *tables, last = key.split(".")
        for part in tables:
            table = table[part]
        assert last in table, f"a source for {key}, which is not there"


def test_the_names_that_are_promised() -> None:
    promised = """gpt3-175b mt-nlg-530b megatron-gpt-1t gpt2-xl llama-2-7b llama-2-13b llama-2-70b llama-3.1-8b llama-3.1-70b
    llama-3.1-405b mixtral-8x7b mixtral-8x22b qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b qwen3-30b-a3b
    qwen3-235b-a22b deepseek-v3 kimi-k2 gpt-oss-20b gpt-oss-120b bloom-176b mistral-7b qwen2.5-72b""".split()
    assert set(promised) <= set(NAMES)


@pytest.mark.parametrize(("name", "published"), PUBLISHED_CONFIGS.items())
def test_an_entry_is_what_its_config_says(name: str, published: str) -> None:
    config = json.loads(shared(f"data/hf_configs/{published}_config.json").read_text())
    entry, model = resolve_model(name), read_config(config, "config.json", name)
    assert entry == replace(model, source=entry.source)
    assert model.assumed == ()


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameters_to_the_unit(name: str, count: int) -> None:
    assert parameter_count(resolve_model(name)) == count


@pytest.mark.parametrize(("name", "stated"), ROUNDED.items())
def test_parameters_as_papers_state_them(name: str, stated: tuple[str, str]) -> None:
    model = resolve_model(name)
    active = active_parameter_count(model)
    if name in EMBEDDING_IS_NOT_ACTIVE:
        active -= model.vocab_size * model.hidden_size
    assert_states(stated[0], parameter_count(model))
    assert_states(stated[1], active)


def assert_states(text: str, count: int) -> None:
    """``text`` is ``count`` in units of 10^9, cut or rounded to its own digits: papers do either."""
    _, _, decimals = text.partition(".")
    unit = 10.0 ** -len(decimals)
    assert -unit / 2 <= count / 1e9 - float(text) < unit, f"{count} is not {text}B"


def test_gpt_3_is_the_shape_of_its_paper() -> None:
    """Brown et al., table 2.1: 96 layers, width 12,288, 96 heads of 128, context 2,048."""
    model = resolve_model("gpt3-175b")
    assert (model.num_layers, model.hidden_size, model.attention.num_heads, model.attention.head_dim) == (96, 12_288, 96, 128)
    assert (model.max_positions, model.positions, model.tied_embeddings) == (2048, "learned", True)
