"""Embedding, and cross-entropy, over a vocabulary that is cut over tp (Shoeybi et al., arXiv 1909.08053, section 3).

V' is the padded vocabulary, a multiple of tp; rank r holds rows r V'/tp to (r+1) V'/tp. Rows past the true vocabulary are never looked
up, and their logits count as minus infinity, so padding cannot change the model. T = B S tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.runtime import scope
from meshwright.runtime.groups import Axis
from meshwright.runtime.parallel.comm import all_gather, all_reduce, reduce_scatter

scope.transparent(__file__)

IGNORE_INDEX = -100
"""A label that does not count; torch's convention."""

SEQUENCE_DIM = 1


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, tp: Axis, sp: bool) -> Tensor:
        ctx.origin, ctx.tp, ctx.sp, ctx.num_rows = scope.origin(), tp, sp, weight.shape[0]
        ctx.save_for_backward(ids)
        rows, mine = _own_rows(ids, weight.shape[0], tp)
        looked_up = weight[rows].masked_fill(~mine[..., None], 0.0)
        return reduce_scatter(looked_up, tp, SEQUENCE_DIM) if sp else all_reduce(looked_up, tp)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        if ctx.sp:
            with scope.back_at(ctx.origin, "backward_input"):
                grad = all_gather(grad, ctx.tp, SEQUENCE_DIM)
        rows, mine = _own_rows(ids, ctx.num_rows, ctx.tp)
        grad_weight = grad.new_zeros((ctx.num_rows, grad.shape[-1]))
        grad_weight.index_add_(0, rows.flatten(), grad.masked_fill(~mine[..., None], 0.0).flatten(0, -2))
        return None, grad_weight, None, None


def _own_rows(ids: Tensor, num_rows: int, tp: Axis) -> tuple[Tensor, Tensor]:
    """Local row of each id, 0 where another rank has it; and whether this rank has it."""
    rows = ids - tp.place * num_rows
    mine = (rows >= 0) & (rows < num_rows)
    return torch.where(mine, rows, 0), mine


def embedding(ids: Tensor, weight: Tensor, tp: Axis, sp: bool = False) -> Tensor:
    """int64 ids [B, S] to [B, S, D] (S/tp of it with sp); weight [V'/tp, D].

    Sends: all_reduce, or with sp a reduce_scatter; backward nothing, or with sp an all_gather. Keeps the ids.
    """
    result: Tensor = _Embedding.apply(ids, weight, tp, sp and tp.size > 1)
    return result


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, vocab_size: int, tp: Axis) -> Tensor:
        num_columns = logits.shape[-1]
        first = tp.place * num_columns
        # float32 at least: a sum over the vocabulary; the copy becomes what is kept for the backward
        work = logits.to(torch.promote_types(logits.dtype, torch.float32)).clone().flatten(0, -2)
        if first + num_columns > vocab_size:
            work[:, max(vocab_size - first, 0) :] = -math.inf
        labels = labels.flatten()
        columns, mine = _own_rows(labels, num_columns, tp)
        highest = all_reduce(work.amax(-1), tp, dist.ReduceOp.MAX)
        work -= highest[:, None]
        target = work.gather(-1, columns[:, None])[:, 0].masked_fill(~mine, 0.0)
        work.exp_()
        sums, target = all_reduce(torch.stack((work.sum(-1), target)), tp)
        counts = labels != IGNORE_INDEX
        work /= sums[:, None]
        work.scatter_add_(-1, columns[:, None], -mine[:, None].to(work.dtype))
        work.masked_fill_(~counts[:, None], 0.0)
        ctx.save_for_backward(work)
        ctx.shape, ctx.dtype = logits.shape, logits.dtype
        return (sums.log() - target).masked_fill(~counts, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * grad).to(ctx.dtype).view(ctx.shape), None, None, None


def cross_entropy(logits: Tensor, labels: Tensor, vocab_size: int, tp: Axis) -> Tensor:
    """The sum over the labels that count of -log softmax(logits)[label]; a scalar, the same on every tp rank.

    Divide it by the step's global count of labels: a mean of ranks' means is another number.

    Args:
        logits: [B, S, V'/tp], this rank's columns. labels: int64 [B, S], shifted already, IGNORE_INDEX for none.
        vocab_size: V, without padding; columns from there on are masked.

    Sends: all_reduce MAX [T], all_reduce SUM [2, T], in float32 (float64 for float64 logits); backward nothing. Keeps the
    gradient of the logits, [T, V'/tp] in the same dtype.
    """
    result: Tensor = _CrossEntropy.apply(logits, labels, vocab_size, tp)
    return result
