"""Random weights that every rank makes alike."""

from __future__ import annotations

import pytest
import torch
import transformers

from meshwright.runtime.initialise import initialised, initialised_weights
from meshwright.spec.parameters import all_parameters
from runtime.reference.families import FAMILIES, Family


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_trained_parameters_are_as_many_as_transformers_has(family: Family) -> None:
    theirs = transformers.AutoModelForCausalLM.from_config(family.config())
    ours = sum(parameter.size for parameter in all_parameters(family.model).values() if parameter.trained)
    assert ours == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_parameter_is_there_and_random(family: Family) -> None:
    weights = initialised_weights(family.model, seed=0, dtype=torch.float64)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {n: p.shape for n, p in all_parameters(family.model).items()}
    for name, tensor in weights.items():
        assert tensor.unique().numel() == tensor.numel(), f"{name} repeats values"


def test_a_value_depends_on_seed_and_name_and_not_on_what_else_is_made() -> None:
    model = next(family.model for family in FAMILIES if family.name == "qwen3")
    whole = initialised_weights(model, seed=4, dtype=torch.float64)
    name = "layers.1.mlp.down.weight"
    parameter = all_parameters(model)[name]
    assert torch.equal(initialised(name, parameter, 4, torch.float64), whole[name])
    assert torch.equal(initialised(name, parameter, 4, torch.bfloat16), whole[name].bfloat16())
    assert not torch.equal(initialised(name, parameter, 5, torch.float64), whole[name])
    assert not torch.equal(whole["layers.0.mlp.down.weight"], whole[name])
