"""RMSNorm and LayerNorm. Statistics are taken in float32 at least."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime.reference.weights import Weights
from meshwright.spec.model import Model


def norm(x: Tensor, weights: Weights, module: str, model: Model) -> Tensor:
    """The model's kind of norm over the last dim of x [..., D], with the parameters of one module."""
    weight = weights[f"{module}.weight"]
    if model.norm == "rmsnorm":
        return rms_norm(x, weight, model.norm_eps)
    return layer_norm(x, weight, weights[f"{module}.bias"], model.norm_eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dim (arXiv 1910.07467, equation 4)."""
    wide = widened(x)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dim (arXiv 1607.06450)."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def widened(x: Tensor) -> Tensor:
    """In float32 if x is narrower: sums over many elements need it; float64 stays float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
