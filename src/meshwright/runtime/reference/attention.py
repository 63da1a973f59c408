"""Causal attention: grouped heads, latent (MLA), sliding window, ALiBi, sinks.

Tensors are [B, S, heads, H], so that the sequence is dim 1 everywhere. Letters as in spec/model.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meshwright.runtime.dropout import Dropout
from meshwright.runtime.reference.norm import rms_norm, widened
from meshwright.runtime.reference.rope import rotate, scaling_kind, stretch_factor, yarn_mscale
from meshwright.runtime.reference.weights import Weights, linear
from meshwright.spec import names
from meshwright.spec.model import Model

LATENT_NORM_EPS = 1e-6
"""eps of MLA's two latent norms, whatever the model's: the default of RMSNorm in deepseek-ai/DeepSeek-V3, modeling_deepseek.py."""

Tables = tuple[Tensor, Tensor] | None
"""Cosines and sines [S, dim/2] of the positions at hand (rope.py); None without rotary positions."""


def queries_keys_values(x: Tensor, weights: Weights, model: Model, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """q [B, S, N, H], k [B, S, K, H], v [B, S, K, Hv] from the normed x [B, S, D], positions applied.

    The number of heads comes from the weights, so that a tensor-parallel rank can pass the heads it holds.
    """
    return (_latent if model.attention.mla else _grouped)(x, weights, model, tables)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    allowed: Tensor,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    drop: Dropout | None = None,
) -> Tensor:
    """softmax(scale q k^T + bias) v over the allowed pairs: [B, Sq, N, Hv].

    Args:
        q: [B, Sq, N, H]. k: [B, Sk, K, H]. v: [B, Sk, K, Hv]; head n reads k and v of head n // (N / K).
        allowed: bool [Sq, Sk] (see ``may_see``). bias: added to the scaled scores, [N, Sq, Sk].
        sinks: [N] logits that take part in the denominator only (gpt-oss).
        drop: dropout of the probabilities, already bound to layer and tokens.
    """
    group = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = widened(torch.einsum("bqnh,bknh->bnqk", q, k) * scale)
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~allowed, -math.inf)
    if sinks is None:
        probabilities = scores.softmax(dim=-1)
    else:
        column = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
        probabilities = torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
    probabilities = probabilities.to(v.dtype)
    if drop is not None:
        probabilities = drop(probabilities)
    return torch.einsum("bnqk,bknh->bqnh", probabilities, v)


def may_see(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """bool [Sq, Sk] from global positions: a query sees itself and earlier keys, of which the last ``window`` tokens."""
    distance = queries[:, None] - keys[None, :]
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def score_scale(model: Model) -> float:
    """Factor on the scores: 1 / sqrt(H), for MLA with a stretched context times DeepSeek's squared mscale_all_dim."""
    scale = float(model.attention.head_dim**-0.5)
    scaling = dict(model.rope.scaling)
    if model.attention.mla and scaling_kind(model) != "default" and scaling.get("mscale_all_dim"):
        scale *= yarn_mscale(stretch_factor(scaling, model.max_positions), float(scaling["mscale_all_dim"])) ** 2
    return scale


def alibi_slopes(num_heads: int) -> Tensor:
    """One slope per head, float64 [N]: 2^(-8 i / N) for i = 1..N (ALiBi, arXiv 2108.12409, section 3).

    Where N is no power of two: the slopes of the power below it, then every other one of the power above it (their code).
    """
    below = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * i / below) for i in range(1, below + 1)]
    slopes += [2 ** (-8 * i / (2 * below)) for i in range(1, 2 * (num_heads - below), 2)]
    return torch.tensor(slopes, dtype=torch.float64)


def alibi_bias(slopes: Tensor, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, Sq, Sk]: slope times (key position - query position), in the dtype of scores of a model of this dtype."""
    distance = (keys[None, :] - queries[:, None]).to(slopes)
    return (slopes[:, None, None] * distance).to(torch.promote_types(dtype, torch.float32))


def _grouped(x: Tensor, weights: Weights, model: Model, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    heads = linear(x, weights, names.QKV).unflatten(-1, (-1, model.attention.head_dim))
    q_heads = weights[f"{names.OUT}.weight"].shape[1] // model.attention.head_dim
    kv_heads = (heads.shape[2] - q_heads) // 2
    q, k, v = heads.split((q_heads, kv_heads, kv_heads), dim=2)
    return *position_queries_keys(q, k, weights, model, tables), v


def position_queries_keys(q: Tensor, k: Tensor, weights: Weights, model: Model, tables: Tables) -> tuple[Tensor, Tensor]:
    """q/k norms over each head if the model has them, then the rotation."""
    if model.attention.qk_norm:
        q = rms_norm(q, weights[f"{names.Q_NORM}.weight"], model.norm_eps)
        k = rms_norm(k, weights[f"{names.K_NORM}.weight"], model.norm_eps)
    if tables is None:
        return q, k
    return rotate(q, *tables, model.rope.interleaved), rotate(k, *tables, model.rope.interleaved)


def _latent(x: Tensor, weights: Weights, model: Model, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """DeepSeek-V2 (arXiv 2405.04434), equations 37-47: c^Q, q^C, q^R, c^KV, k^C, v^C; k^R is one head that all share."""
    mla = model.attention.mla
    assert mla is not None and tables is not None
    latent = x
    if mla.q_lora_rank is not None:
        latent = rms_norm(linear(x, weights, names.Q_DOWN), weights[f"{names.Q_LATENT_NORM}.weight"], LATENT_NORM_EPS)
    q = linear(latent, weights, names.Q_UP).unflatten(-1, (-1, mla.qk_head_dim))
    q_plain, q_turned = q.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), dim=-1)

    latent, k_turned = linear(x, weights, names.KV_DOWN).split((mla.kv_lora_rank, mla.qk_rope_head_dim), dim=-1)
    latent = rms_norm(latent, weights[f"{names.KV_LATENT_NORM}.weight"], LATENT_NORM_EPS)
    kv = linear(latent, weights, names.KV_UP).unflatten(-1, (-1, mla.qk_nope_head_dim + mla.v_head_dim))
    k_plain, v = kv.split((mla.qk_nope_head_dim, mla.v_head_dim), dim=-1)

    q_turned = rotate(q_turned, *tables, model.rope.interleaved)
    k_turned = rotate(k_turned[:, :, None, :], *tables, model.rope.interleaved).expand(-1, -1, k_plain.shape[2], -1)
    return torch.cat((q_plain, q_turned), dim=-1), torch.cat((k_plain, k_turned), dim=-1), v
