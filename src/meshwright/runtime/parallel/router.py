"""The router on a rank's tokens, keeping its input, its logits and its choice; the weights are worked out again in the backward.

T tokens that this rank routes, E experts, k per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime.parallel.linear import weight_gradient
from meshwright.runtime.reference.moe import choose, chosen_weights
from meshwright.runtime.reference.norm import widened
from meshwright.runtime.reference.weights import Weights
from meshwright.runtime.weights_later import PutOff, put_off, seen
from meshwright.spec import names
from meshwright.spec.model import Moe


@dataclass(frozen=True)
class Choice:
    """experts: int64 [T, k]. weights: [T, k], of their outputs. probabilities: [E], the softmax of the logits summed over tokens."""

    experts: Tensor
    weights: Tensor
    probabilities: Tensor


def route(x: Tensor, weights: Weights, moe: Moe, given: Tensor | None = None) -> Choice:
    """Choose k experts for each token of x [T, D], as reference/moe.py does; or take those that are ``given``, int64 [T, k]."""
    weight, bias = weights[f"{names.ROUTER}.weight"], weights.get(f"{names.ROUTER}.bias")
    later = put_off(weight, bias)
    logits = _Logits.apply(x, seen(weight, later), None if bias is None else seen(bias, later), later)
    experts = choose(logits.detach(), weights, moe)[0] if given is None else given
    return Choice(experts, *_Weights.apply(logits, experts, moe))


class _Logits(torch.autograd.Function):
    """x W^T + b in float32 at least; the narrower x is what is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, later: PutOff | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype, ctx.later = None if bias is None else bias.dtype, later
        return F.linear(widened(x), widened(weight), None if bias is None else widened(bias))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_weights: tuple[Tensor | None, ...] = (None, None)
        if ctx.later is not None:
            ctx.later.leave(lambda: tuple(found for found in _logit_weights(ctx, grad, x, weight) if found is not None))
        else:
            of_weights = _logit_weights(ctx, grad, x, weight)
        return (grad @ widened(weight)).to(x.dtype), *of_weights, None


def _logit_weights(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    grad_bias = None if ctx.bias_dtype is None else grad.sum(0).to(ctx.bias_dtype)
    return weight_gradient(grad, widened(x)).to(weight.dtype), grad_bias


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, experts: Tensor, moe: Moe) -> tuple[Tensor, Tensor]:
        ctx.moe = moe
        ctx.save_for_backward(logits, experts)
        return _weights_and_probabilities(logits, experts, moe)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, experts = ctx.saved_tensors
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            (grad,) = torch.autograd.grad(_weights_and_probabilities(leaf, experts, ctx.moe), leaf, grads)
        return grad, None, None


def _weights_and_probabilities(logits: Tensor, experts: Tensor, moe: Moe) -> tuple[Tensor, Tensor]:
    return chosen_weights(logits, experts, moe), logits.softmax(dim=-1).sum(dim=0)
