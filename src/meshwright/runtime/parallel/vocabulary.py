"""Embedding, and cross-entropy, over a vocabulary that is cut over tp (Shoeybi et al., arXiv 1909.08053, section 3).

V' is the padded vocabulary, a multiple of tp; rank r holds rows r V'/tp to (r+1) V'/tp. Rows past the true vocabulary are never looked
up, and their logits count as minus infinity, so padding cannot change the model. T = B S tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
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
        looked_up = F.embedding(rows, weight)
        if tp.size > 1:
            looked_up.masked_fill_(~mine[..., None], 0.0)
        return reduce_scatter(looked_up, tp, SEQUENCE_DIM) if sp else all_reduce(looked_up, tp)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        if ctx.sp:
            with scope.back_at(ctx.origin, "backward_input"):
                grad = all_gather(grad, ctx.tp, SEQUENCE_DIM)
        rows, mine = _own_rows(ids, ctx.num_rows, ctx.tp)
        nowhere = ctx.num_rows  # what torch calls the padding's row: its gradients are left out
        rows = rows.masked_fill(~mine, nowhere) if ctx.tp.size > 1 else rows
        return None, torch.ops.aten.embedding_dense_backward.default(grad, rows, ctx.num_rows, nowhere, False), None, None


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
        ctx.shape, ctx.dtype = logits.shape, logits.dtype
        logits, labels = logits.flatten(0, -2), labels.flatten()
        columns, mine = _own_rows(labels, logits.shape[-1], tp)
        gradient, own_highest, own_sums = _softmax(logits, vocab_size - tp.place * logits.shape[-1])
        highest = all_reduce(own_highest.clone(), tp, dist.ReduceOp.MAX)
        own_sums *= (own_highest - highest).exp()
        target = (logits.gather(-1, columns[:, None])[:, 0] - highest).masked_fill(~mine, 0.0)
        sums, target = all_reduce(torch.stack((own_sums, target)), tp)
        counts = labels != IGNORE_INDEX
        gradient *= (own_sums / sums).masked_fill(~counts, 0.0)[:, None]
        gradient.scatter_add_(-1, columns[:, None], -(mine & counts)[:, None].to(gradient.dtype))
        ctx.save_for_backward(gradient)
        return (sums.log() - target).masked_fill(~counts, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * grad).to(ctx.dtype).view(ctx.shape), None, None, None


def _softmax(logits: Tensor, true_columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of this rank's columns [T, V'/tp], of which those from ``true_columns`` on are padding, in float32 at least: a sum over the
    vocabulary. Also, [T] each, the highest logit, and the sum of exponentials of the others less it: the highest one's share is 1 / sum.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if true_columns <= 0:
        nothing = logits.new_zeros(logits.shape[:1], dtype=dtype)
        return torch.zeros_like(logits, dtype=dtype), nothing - math.inf, nothing
    true_logits = logits[:, :true_columns]
    shares = true_logits.softmax(-1, dtype=dtype)
    highest, sums = true_logits.amax(-1).to(dtype), 1 / shares.amax(-1)
    padding = logits.shape[-1] - true_logits.shape[-1]
    return F.pad(shares, (0, padding)) if padding else shares, highest, sums


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
