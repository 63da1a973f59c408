"""Rotary positions (arXiv 2104.09864) and the ways to stretch them to longer sequences.

Angles are computed in float64 whatever the model's dtype, so that a rank that holds positions 100,000 and on turns by the same
angles as one device does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meshwright.errors import InputError, Mistake
from meshwright.spec.model import Model

Scaling = dict[str, float | str | bool]


def rope_tables(model: Model, positions: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [S, dim/2] for these global positions [S], the attention factor included.

    Args:
        length: length of the whole sequence, also where positions are a part of it ("dynamic" scaling depends on it).
        dtype: of the result.
    """
    frequencies, factor = inverse_frequencies(model, length)
    angles = positions[:, None].to(torch.float64) * frequencies.to(positions.device)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the leading 2 * cos.shape[-1] dims of each head of x [B, S, heads, H]; the rest passes.

    A pair is (i, i + dim/2), or (2i, 2i + 1) where interleaved.
    """
    dim = 2 * cos.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]  # the same for every head
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((turned, rest), dim=-1)


def rotary_dim(model: Model) -> int:
    """How many dims of a head turn: MLA's rope part, or the rotary_dim, or all."""
    if model.attention.mla:
        return model.attention.mla.qk_rope_head_dim
    return model.rope.rotary_dim or model.attention.head_dim


def inverse_frequencies(model: Model, length: int) -> tuple[Tensor, float]:
    """Angle per position for each pair, float64 [dim/2], and the factor on cosines and sines."""
    dim, theta, scaling = rotary_dim(model), model.rope.theta, dict(model.rope.scaling)
    kind = scaling_kind(model)
    if kind == "dynamic":
        theta *= _dynamic_stretch(scaling, dim, model.max_positions, length)
    plain = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if kind in ("default", "dynamic"):
        return plain, 1.0
    if kind == "linear":
        return plain / float(scaling["factor"]), 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn(plain, scaling, dim, theta, model.max_positions), _yarn_factor(scaling, model.max_positions)
    raise InputError([Mistake(model.source or model.name, "rope.scaling.rope_type", kind, "default, linear, dynamic, llama3 or yarn")])


def scaling_kind(model: Model) -> str:
    """The kind of rope scaling: "default" where there is none."""
    scaling = dict(model.rope.scaling)
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def yarn_mscale(factor: float, weight: float = 1.0) -> float:
    """0.1 w ln(factor) + 1 (YaRN, arXiv 2309.00071, equation 22; w is DeepSeek's mscale or mscale_all_dim)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def stretch_factor(scaling: Scaling, max_positions: int) -> float:
    """How many times longer the sequences have become; where the config has no factor, by its two lengths."""
    if scaling.get("factor") is not None:
        return float(scaling["factor"])
    return max_positions / float(scaling["original_max_position_embeddings"])


def _dynamic_stretch(scaling: Scaling, dim: int, max_positions: int, length: int) -> float:
    """Factor on theta that grows with the sequence (dynamic NTK scaling, as in YaRN's appendix B.2)."""
    factor, longer = float(scaling["factor"]), max(length, max_positions) / max_positions
    return float((factor * longer - (factor - 1)) ** (dim / (dim - 2)))


def _llama3(plain: Tensor, scaling: Scaling) -> Tensor:
    """Llama 3.1: long wavelengths are divided by factor, short ones stay, those between are blended.

    Source: meta-llama/llama-models, apply_scaling (July 2024); boundaries original / low and original / high.
    """
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(scaling["original_max_position_embeddings"]) * plain / (2 * math.pi)  # of a pair over the first context
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn(plain: Tensor, scaling: Scaling, dim: int, theta: float, max_positions: int) -> Tensor:
    """YaRN, section 3.2 ("NTK-by-parts"): pairs with many turns stay, with few are interpolated, between them a ramp."""
    original = float(scaling["original_max_position_embeddings"])

    def pair_with_turns(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_with_turns(float(scaling.get("beta_fast") or 32))
    high = pair_with_turns(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # the published code's guard against a ramp of no width
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return plain / stretch_factor(scaling, max_positions) * ramp + plain * (1 - ramp)


def _yarn_factor(scaling: Scaling, max_positions: int) -> float:
    """Factor on cosines and sines: given, or DeepSeek's ratio of two mscales, or YaRN's own."""
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor = stretch_factor(scaling, max_positions)
    mscale, all_dim = float(scaling.get("mscale") or 0), float(scaling.get("mscale_all_dim") or 0)
    if mscale and all_dim:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
    return yarn_mscale(factor)
