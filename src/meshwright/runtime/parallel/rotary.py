"""Rotary positions in few passes, keeping nothing: x cos + swap(x) sin, where swap exchanges the two dims of each pair.

The tables belong to the whole model; nothing is kept for one layer. reference/rope.py turns pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HEADS_DIM = 2


@dataclass(frozen=True)
class Rotary:
    """How the leading ``dim`` dims of each head turn, by position.

    Attributes:
        cos, sin: [S, 1, dim], one entry for each dim of a pair; the first one's sine is negative.
        interleaved: a pair is (2i, 2i + 1), else (i, i + dim/2).
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def turn(self, x: Tensor, back: bool = False) -> Tensor:
        """x [B, S, heads, H], overwritten. ``back``: by the transpose, which is the gradient's way. Rounds where reference/rope.py does."""
        part = x[..., : self.cos.shape[-1]]
        swapped = part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if self.interleaved else part.roll(part.shape[-1] // 2, -1)
        part.mul_(self.cos).add_(swapped.mul_(self.sin), alpha=-1 if back else 1)
        return x


def rotary(tables: tuple[Tensor, Tensor], interleaved: bool) -> Rotary:
    """From cosines and sines [S, dim/2] of the pairs."""

    def each_dim(first: Tensor, second: Tensor) -> Tensor:
        both = torch.stack((first, second), -1) if interleaved else torch.stack((first, second), -2)
        return both.flatten(-2)[:, None, :]

    cos, sin = tables
    return Rotary(each_dim(cos, cos), each_dim(-sin, sin), interleaved)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, turn: Rotary) -> Tensor:
        ctx.turn = turn
        return turn.turn(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.turn.turn(grad.clone(memory_format=torch.contiguous_format), back=True), None


def rotate(x: Tensor, turn: Rotary) -> Tensor:
    """x [B, S, heads, H], turned."""
    result: Tensor = _Rotation.apply(x, turn)
    return result


class _SplitRotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, sizes: tuple[int, int, int], turn: Rotary) -> tuple[Tensor, ...]:
        ctx.turned, ctx.turn = sizes[0] + sizes[1], turn
        result = heads.clone(memory_format=torch.contiguous_format)
        turn.turn(result[:, :, : ctx.turned])
        return result.split(sizes, HEADS_DIM)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = torch.cat(grads, HEADS_DIM)
        ctx.turn.turn(grad[:, :, : ctx.turned], back=True)
        return grad, None, None


def split_and_rotate(heads: Tensor, sizes: Sequence[int], turn: Rotary) -> tuple[Tensor, Tensor, Tensor]:
    """[B, S, N + 2 K, H] to q and k, turned, and v. The three lie in one storage: keep all of them, or none."""
    q, k, v = _SplitRotation.apply(heads, tuple(sizes), turn)
    return q, k, v
