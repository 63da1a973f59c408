"""A weight gradient that is put off is the one that would have been computed at once, and nothing of it is there before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from meshwright.runtime.groups import alone
from meshwright.runtime.parallel.experts import grouped_linear
from meshwright.runtime.parallel.linear import column_linear, row_linear, sum_over_copies
from meshwright.runtime.weights_later import WeightHalf, putting_off
from runtime.parallel.sharded import random

TP = alone("tp")
X, WEIGHT, BIAS = (4, 6, 8), (10, 8), (10,)

LAYERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "column": lambda x, weight, bias: column_linear(x, weight, bias, TP),
    "column without a bias": lambda x, weight, bias: column_linear(x, weight, None, TP) + bias,
    "row": lambda x, weight, bias: row_linear(x, weight, bias, TP),
    "experts": lambda x, weight, bias: grouped_linear(x.flatten(0, 1), weight, bias, (5, 19)).sum(),
    "two uses of one weight": lambda x, weight, bias: column_linear(x, weight, bias, TP) + column_linear(2 * x, weight, bias, TP),
    "through a function of the weight": lambda x, weight, bias: column_linear(x, *sum_over_copies((3 * weight, bias), 4, TP), TP),
}


def gradients(name: str, half: WeightHalf | None) -> tuple[Tensor, nn.Parameter, nn.Parameter]:
    """Of x, and the parameters with what is accumulated so far."""
    x, weight, bias = random(*X, seed=1).requires_grad_(), nn.Parameter(random(*WEIGHT, seed=2)), nn.Parameter(random(*BIAS, seed=3))
    with putting_off(half):
        out = LAYERS[name](x, weight, bias)
    (out * torch.arange(1.0, out.numel() + 1, dtype=out.dtype).view_as(out)).sum().backward()
    assert x.grad is not None
    return x.grad, weight, bias


@pytest.mark.parametrize("name", LAYERS)
def test_both_halves_are_the_whole(name: str):
    whole_x, whole_weight, whole_bias = gradients(name, None)
    half = WeightHalf()
    x, weight, bias = gradients(name, half)
    assert torch.equal(x, whole_x)
    assert weight.grad is None and half.jobs
    half.run()
    torch.testing.assert_close(weight.grad, whole_weight.grad, rtol=1e-13, atol=0)  # two uses may be added in another order
    torch.testing.assert_close(bias.grad, whole_bias.grad, rtol=1e-13, atol=0)
    assert not half.jobs


def test_hooks_run_when_the_gradient_is_there():
    half, seen = WeightHalf(), []
    x, weight = random(*X, seed=1).requires_grad_(), nn.Parameter(random(*WEIGHT, seed=2))
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
    with putting_off(half):
        out = row_linear(x, weight, None, TP)
    out.sum().backward()
    assert not seen
    half.run()
    assert len(seen) == 1 and torch.equal(seen[0], weight.grad)
