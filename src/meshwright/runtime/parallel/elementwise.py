"""Operations that keep little: activations (their input), rotation, splitting into heads, learned positions and
dropout (nothing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.runtime.dropout import Dropout
from meshwright.runtime.reference.mlp import activate as plain_activate
from meshwright.runtime.reference.rope import rotate as plain_rotate
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
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (grad_x,) = torch.autograd.grad(plain_activate(leaf, ctx.model), leaf, grad)
        return grad_x, None


def activate(x: Tensor, model: Model) -> Tensor:
    """reference/mlp.py's ``activate``, elementwise on the rank's own channels; its intermediates are computed again in the backward."""
    result: Tensor = _Activation.apply(x, model)
    return result


class _Rotation(torch.autograd.Function):
    """A linear map of each pair; its transpose turns the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.turn = cos, sin, interleaved
        return plain_rotate(x, cos, sin, interleaved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin, interleaved = ctx.turn
        return plain_rotate(grad, cos, -sin, interleaved), None, None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """reference/rope.py's ``rotate``. The tables belong to the whole model: nothing is kept for one layer."""
    result: Tensor = _Rotation.apply(x, cos, sin, interleaved)
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
