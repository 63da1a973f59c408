"""The feed-forward block and its activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime.reference.weights import Weights, linear
from meshwright.spec.model import Model

CLAMPED_SWIGLU_ALPHA = 1.702
"""Slope inside gpt-oss's gate, x sigmoid(alpha x) (openai/gpt-oss, swiglu; ``swiglu_alpha`` in its config)."""


def mlp(x: Tensor, weights: Weights, gate_up: str, down: str, model: Model) -> Tensor:
    """Two linear layers with the activation between them: [..., D] to [..., D]. The two modules are named by the caller."""
    return linear(activate(linear(x, weights, gate_up), model), weights, down)


def activate(x: Tensor, model: Model) -> Tensor:
    """[..., 2F] with gate and up side by side to [..., F] for the gated kinds, else [..., F] to [..., F]."""
    match model.activation:
        case "swiglu":
            gate, up = x.chunk(2, dim=-1)
            return F.silu(gate) * up
        case "swiglu_clamped":
            return clamped_swiglu(x, model.activation_limit)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)


def clamped_swiglu(x: Tensor, limit: float | None) -> Tensor:
    """gpt-oss's gate: both halves clamped at the limit (gate from above only), up shifted by one."""
    gate, up = x.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(CLAMPED_SWIGLU_ALPHA * gate)
