"""Norms, activations, rotations, splits, dropout, router: outputs, gradients and what they keep, against plain autograd on torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime import saved_bytes
from meshwright.runtime.dropout import Dropout
from meshwright.runtime.parallel import elementwise, norm, rotary, router
from meshwright.runtime.reference import mlp, moe, rope
from meshwright.runtime.scope import in_module
from runtime.parallel.sharded import close, leaf, random
from runtime.steps.small_models import MODELS

FLOAT64 = 8


def _agree(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor) -> int:
    """Outputs and gradients of all inputs agree in float64; the bytes that ours keeps."""
    mine, plain = [leaf(x) for x in inputs], [leaf(x) for x in inputs]
    with saved_bytes.measured(mine[1:]) as found, in_module("block"):
        result = ours(*mine)
    expected = theirs(*plain)
    close(result, expected)
    upstream = random(*expected.shape, seed=99)
    for ours_grad, their_grad in zip(
        torch.autograd.grad(result, mine, upstream), torch.autograd.grad(expected, plain, upstream), strict=True
    ):
        close(ours_grad, their_grad)
    return found.get("block", 0)


def test_rms_norm() -> None:
    x, weight = random(2, 3, 6), random(6, seed=1)
    kept = _agree(lambda x, w: norm.rms_norm(x, w, 1e-3), lambda x, w: F.rms_norm(x, (6,), w, 1e-3), x, weight)
    assert kept == (36 + 6) * FLOAT64  # the input, and one statistic per token


def test_layer_norm() -> None:
    x, weight, bias = random(2, 3, 6) + 1, random(6, seed=1), random(6, seed=2)
    kept = _agree(lambda x, w, b: norm.layer_norm(x, w, b, 1e-3), lambda x, w, b: F.layer_norm(x, (6,), w, b, 1e-3), x, weight, bias)
    assert kept == (36 + 2 * 6) * FLOAT64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norms_take_statistics_in_float32(dtype: torch.dtype) -> None:
    x, weight = random(4, 512, dtype=dtype), random(512, seed=1, dtype=dtype)
    exact = F.layer_norm(x.double(), (512,), weight.double(), weight.double(), 1e-5)
    result = norm.layer_norm(x, weight, weight, 1e-5)
    assert result.dtype == dtype
    # one rounding of the output: 2^-9 of it in bf16, 2^-24 in float32, and a few of float32's inside
    assert ((result.double() - exact).abs() / (1 + exact.abs())).max() < {torch.bfloat16: 2**-8, torch.float32: 2**-20}[dtype]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss"])
def test_activations(family: str) -> None:
    model = MODELS[family]
    kept = _agree(lambda x: elementwise.activate(x, model), lambda x: mlp.activate(x, model), random(3, 8))
    assert kept == 24 * FLOAT64  # the input alone


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation(interleaved: bool) -> None:
    angles = random(5, 2, seed=3)
    cos, sin = 1.3 * angles.cos(), 1.3 * angles.sin()  # the attention factor of stretched positions included
    x = random(2, 5, 3, 6)  # two dims of each head do not turn
    turn = rotary.rotary((cos, sin), interleaved)
    assert _agree(lambda x: rotary.rotate(x, turn), lambda x: rope.rotate(x, cos, sin, interleaved), x) == 0

    def plain(heads: Tensor) -> Tensor:
        q, k, v = heads.split((2, 1, 1), 2)
        return torch.cat((v, rope.rotate(k, cos, sin, interleaved), rope.rotate(q, cos, sin, interleaved)), 2)

    heads = random(2, 5, 4, 6)
    assert _agree(lambda x: torch.cat(rotary.split_and_rotate(x, (2, 1, 1), turn)[::-1], 2), plain, heads) == 0
    assert heads.equal(random(2, 5, 4, 6))


def test_split_gives_tensors_of_their_own() -> None:
    x = random(2, 6, 4)

    def first_and_last(parts: tuple[Tensor, ...]) -> Tensor:
        return parts[0].sum(1) * parts[2].sum(1)

    _agree(lambda x: first_and_last(elementwise.split(x, (1, 2, 3), 1)), lambda x: first_and_last(x.split((1, 2, 3), 1)), x)
    assert [part.untyped_storage().nbytes() for part in elementwise.split(x, (1, 2, 3), 1)] == [64, 128, 192]


def test_table_rows() -> None:
    rows = torch.tensor([3, 0, 3])
    assert _agree(lambda t: elementwise.table_rows(t, rows), lambda t: F.embedding(rows, t), random(5, 2)) == 0


def test_dropout_keeps_no_mask() -> None:
    drop = Dropout(0.4, 0, 0).at(1, "mlp.down", torch.arange(30)[:, None], torch.arange(8))
    assert _agree(lambda x: elementwise.dropped(x, drop), drop, random(30, 8)) == 0
    zeros = (elementwise.dropped(torch.ones(30, 8), drop) == 0).double().mean()
    assert 0.25 < zeros < 0.55  # 240 draws of 0.4, whose mean has a deviation of 0.03


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss", "deepseek", "deepseek_v2"])
def test_router(family: str) -> None:
    model = MODELS[family]
    experts, k = model.moe.num_experts, model.moe.top_k
    bias = {"moe.router.selection_bias": random(experts, seed=5) / 10}

    def ours(x: Tensor, weight: Tensor, router_bias: Tensor) -> Tensor:
        choice = router.route(x, bias | {"moe.router.weight": weight, "moe.router.bias": router_bias}, model.moe)
        return torch.cat((choice.weights.flatten(), choice.probabilities, choice.experts.flatten().double()))

    def theirs(x: Tensor, weight: Tensor, router_bias: Tensor) -> Tensor:
        routing = moe.route(x, bias | {"moe.router.weight": weight, "moe.router.bias": router_bias}, model.moe)
        return torch.cat((routing.weights.flatten(), routing.logits.softmax(-1).sum(0), routing.experts.flatten().double()))

    kept = _agree(ours, theirs, random(7, 6), random(experts, 6, seed=1), random(experts, seed=2))
    assert kept == (7 * 6 + 7 * experts + 7 * k) * FLOAT64  # input, logits, choice


def test_a_given_choice_replaces_the_routers_own() -> None:
    model = MODELS["mixtral"]
    x, weight = random(5, 6), random(4, 6, seed=1)
    given = torch.tensor([[0, 1], [2, 3], [1, 3], [0, 2], [3, 1]])
    choice = router.route(x, {"moe.router.weight": weight}, model.moe, given)
    assert torch.equal(choice.experts, given)
    scores = F.linear(x, weight).softmax(-1).gather(-1, given)
    close(choice.weights, scores / scores.sum(-1, keepdim=True))
