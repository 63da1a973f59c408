"""Random values for every parameter, biases and norms included, from a seed and the parameter's name.

A value depends on nothing but (seed, name, shape), so a rank makes the whole tensor, keeps its part of it, and agrees with all others
without a message. Norms and biases start at random too: a fault that only scales a norm would hide behind ones and zeros.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from meshwright.spec import names
from meshwright.spec.model import Model
from meshwright.spec.parameters import Parameter, all_parameters

NORM_SPREAD = 0.2
"""Standard deviation of norm weights round 1 and of biases round 0: visible in every gradient, and the signal stays of order one."""


def initialised(name: str, parameter: Parameter, seed: int, dtype: torch.dtype) -> Tensor:
    """The whole parameter, drawn in float64 and rounded to dtype, so that every dtype starts from the same numbers.

    Matrices have variance 1 / columns (LeCun, "Efficient BackProp", 1998, section 4.6): outputs have the variance of inputs.
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    normal = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    if len(parameter.shape) == 2:
        values = normal * parameter.shape[1] ** -0.5
    elif _is_norm_weight(parameter):
        values = 1 + NORM_SPREAD * normal
    else:
        values = NORM_SPREAD * normal
    return values.to(dtype)


def initialised_weights(model: Model, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every parameter of the model by full name, whole."""
    return {name: initialised(name, parameter, seed, dtype) for name, parameter in all_parameters(model).items()}


def _is_norm_weight(parameter: Parameter) -> bool:
    return parameter.name.startswith("weight") and parameter.module != names.SINKS
