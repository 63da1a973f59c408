"""Models read from config.json against what transformers builds from the same file, on torch's meta device."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import meta_models
from meshwright.errors import InputError
from meshwright.spec.huggingface import FAMILIES, read_config, read_keys
from meshwright.spec.huggingface.features import find_feature
from meshwright.spec.huggingface.irrelevant import BASE
from meshwright.spec.model import Model
from meshwright.spec.parameters import parameter_count
from model_configs import CONFIGS, random_config
from shared_data import shared

PUBLISHED = [
    "Qwen--Qwen3-0.6B", "Qwen--Qwen3-235B-A22B", "Qwen--Qwen3-30B-A3B-FP8", "Qwen--Qwen3-30B-A3B", "Qwen--Qwen3-32B",
    "deepseek-ai--DeepSeek-V3", "meta-llama--Meta-Llama-3.1-405B", "meta-llama--Meta-Llama-3.1-70B", "meta-llama--Meta-Llama-3.1-8B",
    "mistralai--Mixtral-8x7B-v0.1", "moonshotai--Kimi-K2-Instruct", "openai--gpt-oss-120b",
]  # fmt: skip
REFUSED = {
    "MiniMaxAI--MiniMax-M2.7": "qk_norm_type",
    "Qwen--Qwen3.5-397B-A17B": "vision_config",
    "deepseek-ai--DeepSeek-V3.2": "index_topk",
    "moonshotai--Kimi-K2.5": "vision_config",
    "zai-org--GLM-5": "index_topk",
}


def published(name: str) -> Path:
    return shared(f"data/hf_configs/{name}_config.json")


def assert_same(config: dict[str, Any], model: Model) -> None:
    """Parameters to the unit, the window and kind of each layer, the rotary positions."""
    built = meta_models.build(config)
    assert parameter_count(model) == meta_models.count(built)
    assert [kind.window for kind in model.layers] == meta_models.windows(built)
    assert [kind.moe for kind in model.layers] == meta_models.expert_layers(built)
    if model.positions == "rope":
        assert {"rope_type": "default", "rope_theta": model.rope.theta, **dict(model.rope.scaling)} == meta_models.rope_parameters(built)
    if model.mtp_layers:
        extra = meta_models.count_mtp(built, model.mtp_layers)
        assert parameter_count(model, with_mtp=True) == parameter_count(model) + extra


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config(name: str) -> None:
    config = json.loads(published(name).read_text())
    assert_same(config, read_config(config, name, name))


@pytest.mark.parametrize(("name", "key"), REFUSED.items())
def test_published_config_with_an_unknown_part_is_refused_by_its_key(name: str, key: str) -> None:
    config = json.loads(published(name).read_text())
    with pytest.raises(InputError) as caught:
        read_config(config, name, name)
    told = {mistake.key for mistake in caught.value.mistakes}
    assert {"model_type", key} <= told


def test_every_published_config_is_either_read_or_refused() -> None:
    names = {path.name.removesuffix("_config.json") for path in shared("data/hf_configs").glob("*.json")}
    assert names == {*PUBLISHED, *REFUSED}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_small_config_of_each_family(model_type: str) -> None:
    assert_same(CONFIGS[model_type], read_config(CONFIGS[model_type], "config.json", "small"))


@pytest.mark.parametrize("use_diff", [True, False])
@pytest.mark.parametrize("model_type", CONFIGS)
def test_what_transformers_saves_is_read_back(model_type: str, use_diff: bool) -> None:
    """Newer releases write other keys than the published files have: rope_parameters, dtype, layer_types, every default."""
    saved = json.loads(meta_models.build(CONFIGS[model_type]).config.to_json_string(use_diff=use_diff))
    again, model = read_config(saved, "config.json", "saved"), read_config(CONFIGS[model_type], "config.json", "saved")
    assert again == model


@pytest.mark.parametrize("model_type", FAMILIES)
def test_defaults_of_each_family(model_type: str) -> None:
    """A config that says nothing but its type is what transformers makes of it, and says what it assumed."""
    config = {"model_type": model_type}
    model = read_config(config, "config.json", "empty")
    assert_same(config, model)
    layers = {"gpt2": "n_layer", "bloom": "n_layer"}.get(model_type, "num_hidden_layers")
    assert f"{layers} = {model.num_layers}" in model.assumed


@pytest.mark.parametrize("model_type", CONFIGS)
@pytest.mark.parametrize("seed", range(12))
def test_random_config(model_type: str, seed: int) -> None:
    config = random_config(model_type, random.Random(f"{model_type} {seed}"))
    assert_same(config, read_config(config, "config.json", "random"))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_field_of_the_config_class_is_understood(model_type: str) -> None:
    """A field that a later transformers adds fails here until it is read, known to be irrelevant, or refused."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[meta_models.READ_AS.get(model_type, model_type)]
    family = FAMILIES[model_type]
    known = {*read_keys(model_type), *family.irrelevant, *family.aliases, "architectures", "model_type"}
    fields_of_class = {field.name for field in fields(config_class) if not field.name.startswith("_")}
    unknown = {name for name in fields_of_class | set(config_class.attribute_map) if name not in known and find_feature(name) is None}
    assert not unknown


@pytest.mark.parametrize("model_type", FAMILIES)
def test_aliases_are_those_of_transformers(model_type: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    attribute_map = dict(CONFIG_MAPPING[meta_models.READ_AS.get(model_type, model_type)].attribute_map)
    ours = dict(FAMILIES[model_type].aliases)
    if model_type == "bloom":
        assert ours.pop("n_embed") == "hidden_size"  # BloomConfig takes it out of its keywords itself
    if model_type == "qwen3_moe":  # mapped the other way round there, which is the same
        attribute_map = {value: key for key, value in attribute_map.items()}
    assert ours == attribute_map


def test_keys_for_generation_are_irrelevant() -> None:
    from transformers import GenerationConfig

    assert set(GenerationConfig._get_default_generation_params()) <= set(BASE)
