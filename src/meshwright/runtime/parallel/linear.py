"""Column- and row-parallel linear layers, with and without sequence parallelism.

Shoeybi et al. (arXiv 1909.08053), section 3; Korthikanti et al. (arXiv 2205.05198), section 4.2.2. x is [B, S, in], the sequence is
dim 1; with sp a rank holds S/tp of it between the layers.

    column: weight [out/tp, in]   x (sp: gathered) -> [B, S, out/tp]
    row:    weight [out, in/tp]   [B, S, in/tp] -> the sum over tp (sp: scattered) [B, S, out]

What they keep for the backward is their input as it came in, hence with sp the column layer's is sharded and gathered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime import scope
from meshwright.runtime.groups import Axis
from meshwright.runtime.parallel.comm import (
    Pending,
    all_gather,
    all_reduce,
    reduce_from,
    reduce_scatter_to,
    start_all_gather,
    start_all_reduce,
    start_reduce_scatter,
)
from meshwright.runtime.weights_later import PutOff, put_off, seen

scope.transparent(__file__)

SEQUENCE_DIM = 1


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tp: Axis, sp: bool, later: PutOff | None) -> Tensor:
        ctx.origin, ctx.tp, ctx.sp, ctx.later = scope.origin(), tp, sp, later
        ctx.save_for_backward(x, weight)
        whole = all_gather(x, tp, SEQUENCE_DIM) if sp else x
        return F.linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        gathering, sending = None, None
        if ctx.later is not None:
            ctx.later.leave(lambda: _column_weights(ctx, grad, x))
        elif needs_weight and ctx.sp:
            gathering = _gathered_input(ctx, x)  # on its way while the input's gradient is computed
        if needs_x:
            with scope.back_at(ctx.origin, "backward_input"):
                grad_x = grad @ weight
                sending = start_reduce_scatter(grad_x, ctx.tp, SEQUENCE_DIM) if ctx.sp else start_all_reduce(grad_x, ctx.tp)
        grad_weight = None
        if needs_weight:
            grad_weight = weight_gradient(grad, gathering.wait() if gathering is not None else x)
        grad_bias = grad.flatten(0, -2).sum(0) if needs_bias else None
        return sending.wait() if sending is not None else None, grad_weight, grad_bias, None, None, None


def _gathered_input(ctx: Any, x: Tensor) -> Pending:
    with scope.back_at(ctx.origin, "backward_weight"):
        return start_all_gather(x, ctx.tp, SEQUENCE_DIM)


def _column_weights(ctx: Any, grad: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """The weight half of a column-parallel layer: its weight's gradient, and its bias's if it has one."""
    whole = _gathered_input(ctx, x).wait() if ctx.sp else x
    with_bias = len(ctx.later.parameters) > 1
    return weight_gradient(grad, whole), *([grad.flatten(0, -2).sum(0)] if with_bias else [])


class _Product(torch.autograd.Function):
    """x weight^T; the rows' sum is sent by an operation of its own, so that recomputation can stop before it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, later: PutOff | None) -> Tensor:
        ctx.later = later
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        if ctx.later is not None:
            ctx.later.leave(lambda: (weight_gradient(grad, x),))
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        return grad_x, weight_gradient(grad, x) if ctx.needs_input_grad[1] else None, None


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """[..., out] and [..., in] to [out, in]: the sum over tokens of their products."""
    return grad.flatten(0, -2).T @ x.flatten(0, -2)


def column_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tp: Axis, sp: bool = False) -> Tensor:
    """x [B, S, in] (S/tp of it with sp) to [B, S, out/tp]. weight [out/tp, in], bias [out/tp].

    Sends: sp all_gather; backward all_reduce, or with sp an all_gather and a reduce_scatter. Keeps x as it came in.
    """
    later = put_off(weight, bias)
    seen_bias = None if bias is None else seen(bias, later)
    result: Tensor = _Column.apply(x, seen(weight, later), seen_bias, tp, sp and tp.size > 1, later)
    return result


def row_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tp: Axis, sp: bool = False) -> Tensor:
    """x [B, S, in/tp] to the sum over tp [B, S, out] (S/tp of it with sp). weight [out, in/tp], bias [out], added after the sum.

    Sends: all_reduce, or with sp a reduce_scatter; backward nothing, or with sp an all_gather. Keeps x. With sp the bias'
    gradient is a summand over tp: each rank saw its own tokens.
    """
    later = put_off(weight)
    summand: Tensor = _Product.apply(x, seen(weight, later), later)
    result = reduce_scatter_to(summand, tp, SEQUENCE_DIM) if sp else reduce_from(summand, tp)
    return result if bias is None else result + bias


class _SumCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first_row: int, kv: Axis, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.origin, ctx.first_row, ctx.kv = scope.origin(), first_row, kv
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grads = tuple(grad.clone() for grad in grads)
        copies = [grad[ctx.first_row :] for grad in grads]
        with scope.back_at(ctx.origin, "reduce"):
            total = all_reduce(torch.cat([copy.flatten() for copy in copies]), ctx.kv)
        for copy, part in zip(copies, total.split([copy.numel() for copy in copies]), strict=True):
            copy.copy_(part.view_as(copy))
        return None, None, *grads


def sum_over_copies(parameters: Sequence[Tensor], first_row: int, kv: Axis) -> tuple[Tensor, ...]:
    """Key and value rows (from ``first_row`` on) that several tp ranks hold copies of, of a weight and perhaps its bias: their gradients
    are summed in each backward, by one all_reduce.

    For zero=2 and 3, whose gradients leave after every micro-batch; zero=0 and 1 sum once per step (data_parallel).
    """
    if kv.group is None:
        return tuple(parameters)
    result: tuple[Tensor, ...] = _SumCopies.apply(first_row, kv, *parameters)
    return result
