"""The parameters of a model or of one of its units, by the names of spec/parameters.py."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]
"""Full name (``layers.3.attention.qkv.weight``), or the name inside one unit (``attention.qkv.weight``), to tensor."""


def unit(weights: Weights, name: str) -> dict[str, Tensor]:
    """The parameters of one unit (``layers.3``), without its name in front."""
    prefix = name + "."
    return {key.removeprefix(prefix): tensor for key, tensor in weights.items() if key.startswith(prefix)}


def linear(x: Tensor, weights: Weights, module: str) -> Tensor:
    """[..., in] to [..., out] by the module's weight [out, in] and its bias [out] if it has one."""
    return F.linear(x, weights[f"{module}.weight"], weights.get(f"{module}.bias"))
