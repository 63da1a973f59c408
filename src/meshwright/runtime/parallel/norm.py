"""RMSNorm and LayerNorm that keep their input and their statistics, nothing else: one number per token, two for LayerNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.runtime.reference.norm import widened
from meshwright.runtime.reference.weights import Weights
from meshwright.spec.model import Model


class _RmsNorm(torch.autograd.Function):
    """y = w x r with r = 1 / sqrt(mean(x^2) + eps): dx = r (g - x r mean(g x r)) with g = w dy (arXiv 1910.07467, section 4).

    It rounds where plain autograd on the reference rounds.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        grad_weight = (grad * normed.to(x.dtype)).flatten(0, -2).sum(0)
        of_normed = widened(grad * weight)
        along = (of_normed * normed).sum(-1, keepdim=True)
        grad_x = of_normed.addcmul_(normed, along, value=-1 / x.shape[-1]).mul_(scale)
        return grad_x.to(x.dtype), grad_weight, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dim; weight [its size]. Keeps x and [..., 1] in float32 at least."""
    result: Tensor = _RmsNorm.apply(x, weight, eps)
    return result


class _LayerNorm(torch.autograd.Function):
    """y = w n + b with n = r (x - mean), r = 1 / sqrt(variance + eps): dx = r (g - mean(g) - n mean(g n)) with g = w dy (arXiv 1607.06450).

    One rounding at the end, as torch's own, which keeps its statistics in bf16 on CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        wide = widened(x)
        variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
        scale = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, weight, mean, scale)
        return ((wide - mean) * scale * widened(weight) + widened(bias)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, scale = ctx.saved_tensors
        normed, wide = (widened(x) - mean) * scale, widened(grad)
        of_normed = wide * widened(weight)
        along = of_normed.mean(-1, keepdim=True) + normed * (of_normed * normed).mean(-1, keepdim=True)
        grad_weight, grad_bias = (part.flatten(0, -2).sum(0).to(weight.dtype) for part in (wide * normed, wide))
        return (scale * (of_normed - along)).to(x.dtype), grad_weight, grad_bias, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Over the last dim; weight, bias [its size]. Keeps x and two of [..., 1] in float32 at least."""
    result: Tensor = _LayerNorm.apply(x, weight, bias, eps)
    return result


def norm(x: Tensor, weights: Weights, module: str, model: Model) -> Tensor:
    """The model's kind of norm over the last dim of x [..., D], with the parameters of one module."""
    weight = weights[f"{module}.weight"]
    if model.norm == "rmsnorm":
        return rms_norm(x, weight, model.norm_eps)
    return layer_norm(x, weight, weights[f"{module}.bias"], model.norm_eps)
