"""Weights to transformers and back, in memory and through the files it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from meshwright.errors import InputError
from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.reference.import_huggingface import from_huggingface, to_huggingface
from runtime.reference.families import FAMILIES, Family
from runtime.reference.transformers_float64 import casts, transformers_model

BY_NAME = {family.name: family for family in FAMILIES}


def _same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_files_that_transformers_writes_come_back_as_the_same_weights(family: Family, tmp_path: Path) -> None:
    weights = initialised_weights(family.model, seed=0, dtype=torch.float64)
    with casts(off=True):
        transformers_model(family, weights, without_float32=True).save_pretrained(tmp_path)
    on_disk: dict[str, Tensor] = {}
    for file in tmp_path.glob("*.safetensors"):
        on_disk |= load_file(file)
    _same(weights, from_huggingface(family.model, on_disk))


@pytest.mark.parametrize(
    ("name", "naming", "key"),
    [
        ("mixtral", "mixtral", "model.layers.0.block_sparse_moe.experts.4.w3.weight"),
        ("qwen3_moe", "per_expert", "model.layers.0.mlp.experts.5.up_proj.weight"),
        ("deepseek_v3", "per_expert", "model.layers.2.mlp.experts.7.down_proj.weight"),
        ("deepseek_v3", "fused", "model.layers.2.mlp.experts.down_proj"),
    ],
)
def test_experts_are_named_as_on_disk_or_fused_as_in_memory(name: str, naming: str, key: str) -> None:
    model = BY_NAME[name].model
    weights = initialised_weights(model, seed=0, dtype=torch.float32)
    state = to_huggingface(model, weights, naming)
    assert key in state
    _same(weights, from_huggingface(model, state))


def test_a_prediction_layers_shared_matrices_are_taken_from_the_main_model() -> None:
    # DeepSeek-V3's files repeat embedding and head inside layer 61.
    model = replace(BY_NAME["deepseek_v3"].model, mtp_layers=1)
    weights = initialised_weights(model, seed=0, dtype=torch.float32)
    state = to_huggingface(model, weights, "per_expert")
    assert "model.layers.3.shared_head.norm.weight" in state
    copies = {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}
    state |= {f"model.layers.3.{ours}.weight": state[f"{theirs}.weight"] for ours, theirs in copies.items()}
    _same(weights, from_huggingface(model, state))


def test_bare_gpt2_files_have_no_prefix_and_hold_masks() -> None:
    family = BY_NAME["gpt2"]
    weights = initialised_weights(family.model, seed=0, dtype=torch.float32)
    bare = {key.removeprefix("transformer."): tensor for key, tensor in to_huggingface(family.model, weights, "gpt2").items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    _same(weights, from_huggingface(family.model, bare))


def test_all_missing_and_left_over_tensors_are_told_together() -> None:
    model = BY_NAME["llama"].model
    state = to_huggingface(model, initialised_weights(model, seed=0, dtype=torch.float32), "fused")
    del state["model.layers.1.self_attn.k_proj.weight"], state["lm_head.weight"]
    state["model.layers.3.mlp.up_proj.weight"] = torch.zeros(1, 1)
    with pytest.raises(InputError) as caught:
        from_huggingface(model, state, file="model.safetensors")
    assert [(m.file, m.key, m.problem) for m in caught.value.mistakes] == [
        ("model.safetensors", "lm_head.weight", "is missing"),
        ("model.safetensors", "model.layers.1.self_attn.k_proj.weight", "is missing"),
        ("model.safetensors", "model.layers.3.mlp.up_proj.weight", "is not in the model"),
    ]


def test_a_tensor_of_another_shape_is_named() -> None:
    model = BY_NAME["llama"].model
    state = to_huggingface(model, initialised_weights(model, seed=0, dtype=torch.float32), "fused")
    state["model.norm.weight"] = torch.zeros(33)
    with pytest.raises(InputError, match=r"`model.norm.weight` = \(33,\) is not the shape of norm.weight"):
        from_huggingface(model, state)


def test_a_naming_of_another_family_is_refused() -> None:
    model = BY_NAME["gpt2"].model
    with pytest.raises(InputError, match="legal: gpt2"):
        to_huggingface(model, initialised_weights(model, seed=0, dtype=torch.float32), "mixtral")
