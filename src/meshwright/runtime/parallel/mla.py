"""Latent attention's projections (DeepSeek-V2, arXiv 2405.04434, section 2.1) over tp.

The down projections are held whole and work on the tokens of the rank's stream. Their latents, Cq of the query and Ckv = kv latent +
rotary key, enter the column-parallel up projections as one tensor of width C = Cq + Ckv; without a query latent Cq = D, the stream
itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime import scope
from meshwright.runtime.groups import Axis, alone
from meshwright.runtime.parallel.comm import Pending, all_gather, start_all_gather, start_all_reduce, start_reduce_scatter
from meshwright.runtime.parallel.elementwise import split
from meshwright.runtime.parallel.linear import SEQUENCE_DIM, column_linear, weight_gradient
from meshwright.runtime.parallel.norm import rms_norm
from meshwright.runtime.parallel.rotary import rotate
from meshwright.runtime.parallel.setting import Setting
from meshwright.runtime.reference.attention import LATENT_NORM_EPS
from meshwright.runtime.reference.weights import Weights
from meshwright.runtime.scope import in_module
from meshwright.runtime.weights_later import PutOff, put_off, seen
from meshwright.spec import names

scope.transparent(__file__)


def project(setting: Setting, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The normed stream x [mb, S/(cp, tp), D] to q, k [mb, S/cp, N/tp, nope + rope] and v [mb, S/cp, N/tp, Hv]."""
    mla = setting.model.attention.mla
    assert mla is not None and setting.rotary is not None
    latents = _latents(setting, weights, x)
    with in_module(names.Q_UP):
        q_up, kv_up = weights[f"{names.Q_UP}.weight"], weights[f"{names.KV_UP}.weight"]
        later = put_off(q_up, kv_up)
        q, kv, k_turned = _Up.apply(*latents, seen(q_up, later), seen(kv_up, later), setting.tp, setting.sp, later)
    q = q.unflatten(-1, (-1, mla.qk_head_dim))
    kv = kv.unflatten(-1, (-1, mla.qk_nope_head_dim + mla.v_head_dim))
    q_plain, q_turned = q.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), -1)
    k_plain, v = split(kv, (mla.qk_nope_head_dim, mla.v_head_dim), -1)
    q_turned = rotate(q_turned, setting.rotary)
    k_turned = rotate(k_turned[:, :, None, :], setting.rotary).expand(-1, -1, k_plain.shape[2], -1)
    return torch.cat((q_plain, q_turned), -1), torch.cat((k_plain, k_turned), -1), v


def _latents(setting: Setting, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The query's latent (or x), the latent of keys and values, the rotary key: [mb, S/(cp, tp), ...], C wide together."""
    mla = setting.model.attention.mla
    assert mla is not None
    query = x
    if mla.q_lora_rank is not None:
        with in_module(names.Q_DOWN):
            query = _whole_linear(x, weights, names.Q_DOWN)
        with in_module(names.Q_LATENT_NORM):
            query = rms_norm(query, weights[f"{names.Q_LATENT_NORM}.weight"], LATENT_NORM_EPS)
    with in_module(names.KV_DOWN):
        down = _whole_linear(x, weights, names.KV_DOWN)
    latent, k_turned = split(down, (mla.kv_lora_rank, mla.qk_rope_head_dim), -1)
    with in_module(names.KV_LATENT_NORM):
        latent = rms_norm(latent, weights[f"{names.KV_LATENT_NORM}.weight"], LATENT_NORM_EPS)
    return query, latent, k_turned


def _whole_linear(x: Tensor, weights: Weights, module: str) -> Tensor:
    return column_linear(x, weights[f"{module}.weight"], weights.get(f"{module}.bias"), alone("tp"))


class _Up(torch.autograd.Function):
    """Both up projections. The latents travel packed, and are kept as they came in; their gradients travel packed too."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, latent: Tensor, k_turned: Tensor, q_up: Tensor, kv_up: Tensor, tp: Axis, sp: bool, later: PutOff | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.origin, ctx.tp, ctx.sp, ctx.later = scope.origin(), tp, sp, later
        ctx.widths = (query.shape[-1], latent.shape[-1], k_turned.shape[-1])
        ctx.save_for_backward(query, latent, k_turned, q_up, kv_up)
        if sp:
            query, latent, k_turned = all_gather(torch.cat((query, latent, k_turned), -1), tp, SEQUENCE_DIM).split(ctx.widths, -1)
        return F.linear(query, q_up), F.linear(latent, kv_up), k_turned.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, latent, k_turned, q_up, kv_up = ctx.saved_tensors
        grad_q, grad_kv, grad_turned = grads
        latents = query, latent, k_turned
        gathering = None
        if ctx.later is not None:
            ctx.later.leave(lambda: _up_weights(ctx, latents, grad_q, grad_kv, None))
        elif ctx.sp:
            gathering = _gathered_latents(ctx, latents)  # on its way while the latents' gradient is computed
        with scope.back_at(ctx.origin, "backward_input"):
            grad = torch.cat((grad_q @ q_up, grad_kv @ kv_up, grad_turned), -1)
            sending = start_reduce_scatter(grad, ctx.tp, SEQUENCE_DIM) if ctx.sp else start_all_reduce(grad, ctx.tp)
        of_weights = (None, None) if ctx.later is not None else _up_weights(ctx, latents, grad_q, grad_kv, gathering)
        return *sending.wait().split(ctx.widths, -1), *of_weights, None, None, None


def _gathered_latents(ctx: Any, latents: tuple[Tensor, Tensor, Tensor]) -> Pending:
    with scope.back_at(ctx.origin, "backward_weight"):
        return start_all_gather(torch.cat(latents, -1), ctx.tp, SEQUENCE_DIM)


def _up_weights(
    ctx: Any, latents: tuple[Tensor, Tensor, Tensor], grad_q: Tensor, grad_kv: Tensor, gathering: Pending | None
) -> tuple[Tensor, Tensor]:
    """Gradients of both up projections, from the latents of all tokens."""
    query, latent, _ = latents
    if ctx.sp:
        gathering = gathering or _gathered_latents(ctx, latents)
        query, latent, _ = gathering.wait().split(ctx.widths, -1)
    return weight_gradient(grad_q, query), weight_gradient(grad_kv, latent)
