"""Routing and balance, on numbers worked out by hand. Whole layers are compared with transformers in test_model.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.reference.moe import (
    Routing,
    balance_loss,
    balance_statistics,
    moe_block,
    route,
    smallest_margin,
    updated_selection_bias,
)
from meshwright.runtime.reference.weights import unit
from meshwright.spec.model import Moe
from runtime.reference.families import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}


def _route(logits: list[list[float]], moe: Moe, selection_bias: list[float] | None = None) -> Routing:
    """Route tokens whose router logits are these: the tokens are one-hot, the router's weight holds the logits."""
    wanted = torch.tensor(logits, dtype=torch.float64)
    weights = {"moe.router.weight": wanted.T.contiguous()}
    if selection_bias is not None:
        weights["moe.router.selection_bias"] = torch.tensor(selection_bias, dtype=torch.float64)
    return route(torch.eye(len(logits), dtype=torch.float64), weights, moe)


def test_the_selection_bias_chooses_and_does_not_weigh() -> None:
    moe = Moe(num_experts=3, top_k=1, expert_ffn_size=1, score="sigmoid", selection_bias=True, norm_topk=False, routed_scale=2.0)
    routing = _route([[1.0, 0.0, -1.0]], moe, selection_bias=[0.0, 0.0, 1.0])
    assert routing.experts.tolist() == [[2]]
    assert routing.weights.item() == pytest.approx(2 / (1 + math.e), rel=1e-15)


def test_groups_are_ranked_by_their_two_best_under_sigmoid_and_by_their_best_under_softmax() -> None:
    # group 0 holds the best expert, group 1 the best pair
    logits = [[3.0, -9.0, 2.0, 1.9]]
    two_best = Moe(num_experts=4, top_k=2, expert_ffn_size=1, score="sigmoid", num_groups=2, top_groups=1)
    best = replace(two_best, score="softmax")
    assert sorted(_route(logits, two_best).experts[0].tolist()) == [2, 3]
    assert sorted(_route(logits, best).experts[0].tolist()) == [0, 1]


def test_the_margin_is_the_closest_near_miss_of_experts_or_groups() -> None:
    moe = Moe(num_experts=4, top_k=2, expert_ffn_size=1, score="softmax_topk")
    assert smallest_margin(_route([[4.0, 3.0, 1.0, 0.0], [0.0, 5.0, 4.5, 6.0]], moe), moe) == pytest.approx(0.5)
    assert smallest_margin(_route([[4.0, 3.0, 1.0, 0.0]], moe), replace(moe, top_k=4)) == math.inf
    grouped = Moe(num_experts=4, top_k=1, expert_ffn_size=1, score="sigmoid", num_groups=2, top_groups=1)
    by_hand = torch.tensor([2.0, -9.0, 1.0, -9.0], dtype=torch.float64).sigmoid()
    near = _route([[2.0, -9.0, 1.0, -9.0]], grouped)
    assert smallest_margin(near, grouped) == pytest.approx((by_hand[0] - by_hand[2]).item(), rel=1e-12)


def test_balanced_routing_costs_k_and_imbalance_more() -> None:
    # Switch Transformer, section 2.2: 1 for top-1 under uniform routing; with all k choices counted, k
    even = Routing(
        torch.zeros(4, 4, dtype=torch.float64), torch.tensor([[0, 1], [2, 3], [1, 2], [3, 0]]), torch.ones(4, 2), torch.zeros(4, 4)
    )
    statistics = balance_statistics(even, 4)
    assert statistics.tolist() == [[2] * 4, [1] * 4]
    assert balance_loss(statistics, rows=4).item() == 2
    assert balance_loss(statistics + statistics, rows=8).item() == 2  # two ranks
    skewed = replace(even, logits=torch.tensor([[3.0, 0, 0, 0]] * 4), experts=torch.tensor([[0, 1]] * 4))
    assert balance_loss(balance_statistics(skewed, 4), rows=4).item() > 2.5


def test_bias_steps_towards_the_mean_load() -> None:
    bias = updated_selection_bias(torch.zeros(3, dtype=torch.float64), torch.tensor([5, 3, 1]), speed=0.25)
    assert bias.tolist() == [-0.25, 0, 0.25]


def test_an_expert_without_tokens_still_has_a_gradient_of_zeros() -> None:
    model = BY_NAME["mixtral"].model
    weights = unit(initialised_weights(model, seed=1, dtype=torch.float64), "layers.0")
    with torch.no_grad():
        weights["moe.router.weight"][:] = 0
        weights["moe.router.weight"][:2] = 1  # every token whose entries are positive goes to experts 0 and 1
    weights = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    out, routing = moe_block(torch.rand(1, 6, model.hidden_size, dtype=torch.float64), weights, model)
    assert set(routing.experts.flatten().tolist()) == {0, 1}
    gradient = torch.autograd.grad(out.sum(), weights["moe.experts.weight"])[0].unflatten(0, (5, -1))
    assert [bool(gradient[expert].any()) for expert in range(5)] == [True, True, False, False, False]


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_the_order_of_tokens_does_not_matter(name: str) -> None:
    # what dispatch to other ranks rests on
    model = BY_NAME[name].model
    weights = unit(initialised_weights(model, seed=1, dtype=torch.float64), "layers.2")
    x = torch.randn(1, 9, model.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([4, 8, 0, 1, 7, 3, 2, 6, 5])
    whole, routing = moe_block(x, weights, model)
    shuffled, other = moe_block(x[:, order], weights, model)
    assert torch.equal(other.experts.sort(-1).values, routing.experts[order].sort(-1).values)
    torch.testing.assert_close(shuffled, whole[:, order], rtol=0, atol=1e-14)
