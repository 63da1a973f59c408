"""Thousands of damaged configs: an InputError or a Model, never anything else; a Model is the one that transformers builds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import meta_models
from damage import mutate_text, mutate_values
from meshwright.errors import InputError
from meshwright.spec.files import parse_json
from meshwright.spec.huggingface import read_config
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model import Model
from meshwright.spec.parameters import parameter_count
from model_configs import CONFIGS, mutate

MUTANTS = 500
COMPARED_LAYERS = 40
"""Longer models take transformers too long to build; their layers are like the others'."""


def read(config: dict[str, Any]) -> Model | None:
    """The model of a mutant, None where it is refused with at least one mistake that says where and what."""
    try:
        return read_config(config, "config.json", "mutant")
    except InputError as error:
        assert error.mistakes
        assert all(mistake.file and mistake.legal for mistake in error.mistakes)
        assert str(error).isprintable() or "\x1b" not in str(error)
        json.dumps([mistake.as_json() for mistake in error.mistakes])
        return None


def transformers_count(config: dict[str, Any]) -> int | None:
    """Parameters that transformers builds; None where it refuses for the one reason for which we do not.

    transformers wants a float as ``7.0`` where JSON has one kind of number: ``7`` is taken.
    """
    try:
        return meta_models.count(meta_models.build(config))
    except Exception as error:
        assert "expected float, got int" in str(error), f"transformers refuses what was read: {error}"
        return None


@pytest.mark.parametrize("model_type", CONFIGS)
def test_mutants_of_each_family(model_type: str) -> None:
    accepted = compared = 0
    for seed in range(MUTANTS):
        config = mutate(CONFIGS[model_type], random.Random(f"{model_type} {seed}"))
        model = read(config)
        if model is None:
            continue
        accepted += 1
        if accepted % 3 == 0 and model.num_layers <= COMPARED_LAYERS and (count := transformers_count(config)) is not None:
            compared += 1
            assert parameter_count(model) == count, f"seed {seed}"
    # the mutations are mild enough to compare many, and harsh enough to refuse many
    assert compared > MUTANTS // 10
    assert accepted < MUTANTS * 3 // 4


@pytest.mark.parametrize("model_type", CONFIGS)
def test_damaged_values(model_type: str) -> None:
    """Harsher than the mutants: values of every kind anywhere, keys of any characters. Few are accepted."""
    for seed in range(400):
        read(mutate_values(CONFIGS[model_type], random.Random(f"{model_type} {seed}")))


@pytest.mark.parametrize("model_type", CONFIGS)
def test_damaged_text(model_type: str) -> None:
    text = json.dumps(CONFIGS[model_type], indent=1)
    for seed in range(300):
        try:
            values = parse_json(mutate_text(text, random.Random(f"{model_type} {seed}")), "config.json", finite=False)
        except InputError as error:
            assert error.mistakes[0].problem
        else:
            read(values)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_file(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    data = bytearray(json.dumps(CONFIGS[rng.choice(list(CONFIGS))]).encode())
    for _ in range(rng.randint(1, 20)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    (tmp_path / "config.json").write_bytes(bytes(data))
    try:
        assert isinstance(resolve_model(str(tmp_path)), Model)
    except InputError as error:
        assert all(mistake.file == str(tmp_path / "config.json") for mistake in error.mistakes)
