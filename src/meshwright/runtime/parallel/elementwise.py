"""Operations that keep little: activations (their input), splitting into heads, learned positions and dropout (nothing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime.dropout import Dropout
from meshwright.runtime.reference.mlp import activate as plain_activate
from meshwright.spec.model import Model


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, model: Model) -> Tensor:
        ctx.model = model
        ctx.save_for_backward(x)
        return plain_activate(x, model)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if ctx.model.activation == "swiglu":
            return _swiglu_gradient(x, grad), None
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (grad_x,) = torch.autograd.grad(plain_activate(leaf, ctx.model), leaf, grad)
        return grad_x, None


def _swiglu_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Of silu(gate) up, written where both halves belong."""
    gate, up = x.chunk(2, -1)
    grad_x = torch.empty_like(x)
    grad_gate, grad_up = grad_x.chunk(2, -1)
    torch.mul(grad, F.silu(gate), out=grad_up)
    torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
    return grad_x


def activate(x: Tensor, model: Model) -> Tensor:
    """reference/mlp.py's ``activate``, elementwise on the rank's own channels; its intermediates are computed again in the backward."""
    result: Tensor = _Activation.apply(x, model)
    return result


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: tuple[int, ...], dim: int) -> tuple[Tensor, ...]:
        ctx.dim = dim
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in x.split(sizes, dim))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return torch.cat(grads, ctx.dim), None, None


def split(x: Tensor, sizes: Sequence[int], dim: int) -> tuple[Tensor, ...]:
    """Parts as tensors of their own: keeping one of them does not keep the whole."""
    parts: tuple[Tensor, ...] = _Split.apply(x, tuple(sizes), dim)
    return parts


class _TableRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.rows, ctx.num_rows = rows, table.shape[0]
        return table[rows]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad_table = grad.new_zeros((ctx.num_rows, grad.shape[-1]))
        return grad_table.index_add_(0, ctx.rows, grad), None


def table_rows(table: Tensor, rows: Tensor) -> Tensor:
    """[S, D] of a table of learned positions. ``rows`` int64 [S] are the same in every micro-batch: nothing is kept for one."""
    result: Tensor = _TableRows.apply(table, rows)
    return result


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, drop: Dropout) -> Tensor:
        ctx.drop = drop
        return drop(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.drop(grad), None


def dropped(x: Tensor, drop: Dropout) -> Tensor:
    """Dropout that is bound to its elements. The mask is made again in the backward: it is a function of places."""
    result: Tensor = _Drop.apply(x, drop)
    return result
