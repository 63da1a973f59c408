"""Parts of parameters: every entry is held, and the parts together compute what the whole computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime.cut import Holder, Place, local_part
from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.reference.attention import attend, may_see, queries_keys_values, score_scale
from meshwright.runtime.reference.mlp import mlp
from meshwright.runtime.reference.moe import expert_mlp, expert_weights
from meshwright.runtime.reference.rope import rope_tables
from meshwright.runtime.reference.weights import Weights, unit
from meshwright.spec import names
from meshwright.spec.model import Model
from meshwright.spec.parameters import all_parameters
from runtime.reference.families import FAMILIES, Family

BY_NAME = {family.name: family for family in FAMILIES}


def _layer(model: Model, layer: int, holder: Holder) -> dict[str, Tensor]:
    weights = initialised_weights(model, seed=6, dtype=torch.float64)
    parts = {name: local_part(weights[name], parameter, model, holder) for name, parameter in all_parameters(model).items()}
    return unit(parts, f"layers.{layer}")


def _input(model: Model) -> Tensor:
    return torch.randn(2, 7, model.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def _attention(model: Model, weights: Weights, x: Tensor) -> Tensor:
    """Output projection without its bias, which is added once, after the sum over ranks."""
    positions = torch.arange(x.shape[1])
    tables = rope_tables(model, positions, len(positions), x.dtype) if model.positions == "rope" else None
    q, k, v = queries_keys_values(x, weights, model, tables)
    out = attend(q, k, v, score_scale(model), may_see(positions, positions, None), sinks=weights.get(f"{names.SINKS}.weight"))
    return F.linear(out.flatten(-2), weights[f"{names.OUT}.weight"])


@pytest.mark.parametrize("degree", [2, 4])  # 2 kv heads: on 4 ranks each is held twice
@pytest.mark.parametrize("name", ["llama tied, biases", "qwen3", "deepseek_v3", "gpt_oss", "gpt2"])
def test_attention_of_the_ranks_heads_sums_to_the_whole(name: str, degree: int) -> None:
    model = BY_NAME[name].model
    x = _input(model)
    whole = _attention(model, _layer(model, 1, Holder()), x)
    parts = [_attention(model, _layer(model, 1, Holder(tp=Place(r, degree))), x) for r in range(degree)]
    torch.testing.assert_close(sum(parts), whole, rtol=0, atol=1e-13)  # float64, sums of order one


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_mlp_of_the_ranks_channels_sums_to_the_whole(name: str) -> None:
    # a naive cut of the fused gate and up rows would give one rank all gates
    model = BY_NAME[name].model

    def output(holder: Holder) -> Tensor:
        weights = {key: t for key, t in _layer(model, 0, holder).items() if key != "mlp.down.bias"}
        return mlp(_input(model), weights, names.GATE_UP, names.DOWN, model)

    torch.testing.assert_close(sum(output(Holder(tp=Place(r, 4))) for r in range(4)), output(Holder()), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_an_expert_is_found_on_its_ep_rank_and_summed_over_etp(name: str) -> None:
    family = BY_NAME[name]
    model = replace(family.model, moe=replace(family.model.moe, num_experts=6))
    rows = _input(model)[0]
    for expert in range(6):
        gate_up, gate_up_bias, down, down_bias = expert_weights(_layer(model, 2, Holder()), expert, 6)
        whole = expert_mlp(rows, gate_up, gate_up_bias, down, down_bias, model)
        total = torch.zeros_like(whole)
        for r in range(2):
            held = _layer(model, 2, Holder(ep=Place(expert // 2, 3), etp=Place(r, 2)))
            gate_up, gate_up_bias, down, bias = expert_weights(held, expert % 2, 2)
            total += expert_mlp(rows, gate_up, gate_up_bias, down, None, model)
            assert (bias is None) == (down_bias is None)
            assert bias is None or torch.equal(bias, down_bias)
        total = total if down_bias is None else total + down_bias
        torch.testing.assert_close(total, whole, rtol=0, atol=1e-13)


def test_vocabulary_is_padded_with_zeros_and_cut_in_order() -> None:
    model = BY_NAME["llama"].model  # 61 rows
    parameter = all_parameters(model)["head.weight"]
    whole = torch.randn(parameter.shape, dtype=torch.float64)
    parts = [local_part(whole, parameter, model, Holder(tp=Place(r, 4), padded_vocab=64)) for r in range(4)]
    assert torch.equal(torch.cat(parts), F.pad(whole, (0, 0, 0, 3)))
    assert torch.equal(local_part(whole, parameter, model, Holder(tp=Place(1, 4))), whole)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_entry_is_held_by_some_rank_and_by_one_unless_it_is_a_copy(family: Family) -> None:
    model = family.model
    cut_sizes = (model.attention.num_heads, model.ffn_size, model.moe.shared_ffn_size if model.moe else 0)
    tp = 2 if any(size % 4 for size in cut_sizes) else 4
    copies_of_kv = max(1, tp // model.attention.num_kv_heads)
    for name, parameter in all_parameters(model).items():
        if parameter.cut.startswith("expert"):
            continue
        numbered = torch.arange(parameter.size, dtype=torch.int64).view(parameter.shape)
        held = [local_part(numbered, parameter, model, Holder(tp=Place(r, tp))) for r in range(tp)]
        counts = torch.bincount(torch.cat([part.flatten() for part in held]), minlength=parameter.size)
        allowed = {"whole": {tp}, "vocab": {tp}, "qkv": {1, copies_of_kv}}.get(parameter.cut, {1})
        assert set(counts.tolist()) == allowed, name
