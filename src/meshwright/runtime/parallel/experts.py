"""Expert parallelism: token copies travel to the ranks that hold their experts, and back (GShard, arXiv 2006.16668, section 3.2).

No copy is dropped and none is padded over ep: each pair of ranks exchanges as many rows as the router says, which may be none.
Letters: T tokens that this rank routes, k experts per token, E experts, D model, F ffn of one expert, L = E/ep local experts.

Experts are two matrices, the expert the slow part of dim 0: gate_up [L 2F/etp, D], down [L D, F/etp]. Cut over etp, every
etp rank has a slice of each local expert. With sp the etp ranks hold different tokens, so they gather their copies (padded
to the largest count) and scatter the sums; without it they hold the same tokens and sum what they computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime import scope
from meshwright.runtime.groups import Axis
from meshwright.runtime.parallel.comm import all_gather, all_to_all, copy_to, exchange_rows, gather_from, reduce_from, reduce_scatter_to
from meshwright.runtime.weights_later import PutOff, put_off, seen
from meshwright.spec import names

scope.transparent(__file__)


@dataclass(frozen=True, kw_only=True)
class Load:
    """How many copies go where, in place of the router's numbers (fake tensors have none).

    Attributes:
        sent: by this rank, per expert [E]. received: from each ep rank, per local expert [ep][L].
        by_etp: what each etp rank works on, per local expert [etp][L]; needed with sp only.
    """

    sent: tuple[int, ...]
    received: tuple[tuple[int, ...], ...]
    by_etp: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """Where this rank's copies go, and what comes in.

    Attributes:
        order: int64 [T k]; the copy (token k + choice) at each place when sorted by expert.
        sent, received: rows to and from each ep rank.
        blocks: rows [ep][L] of each block that comes in, sorted by source and then by local expert.
        by_etp: rows [etp][L] that each etp rank brings, where they gather them; else of this rank alone [1][L].
    """

    order: Tensor
    sent: tuple[int, ...]
    received: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    by_etp: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each local expert [L], as it works on them."""
        return tuple(map(sum, zip(*self.by_etp, strict=True)))


@dataclass(frozen=True, kw_only=True)
class ExpertAxes:
    """The expert fold of this rank. gathers: etp ranks hold different tokens (sp), and gather them."""

    ep: Axis
    etp: Axis
    sp: bool

    @property
    def gathers(self) -> bool:
        return self.sp and self.etp.size > 1


def plan_dispatch(experts: Tensor, num_experts: int, axes: ExpertAxes, load: Load | None = None) -> Dispatch:
    """Sort the copies of ``experts`` int64 [T, k] by expert, and tell every ep rank how many will come.

    Sends: all_to_all of int64 counts [E] over ep; with etp and sp an all_gather of the local experts' counts over etp.
    """
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=num_experts) if load is None else flat.new_zeros(num_experts)
    with scope.in_module(names.DISPATCH):
        by_source = exchange_rows(counts, axes.ep).view(axes.ep.size, -1)
    local = by_source.sum(0)
    with scope.in_module(names.EXPERTS):
        by_etp = all_gather(local, axes.etp).view(-1, local.shape[0]) if axes.gathers else local[None]
    if load is None:
        sent = tuple(counts.view(axes.ep.size, -1).sum(1).tolist())
        blocks, of_etp = _rows(by_source), _rows(by_etp)
    else:
        sent = tuple(sum(part) for part in _parts(load.sent, axes.ep.size))
        blocks = load.received
        of_etp = load.by_etp if axes.gathers else (tuple(map(sum, zip(*blocks, strict=True))),)
    return Dispatch(order=order, sent=sent, received=tuple(map(sum, blocks)), blocks=blocks, by_etp=of_etp)


def _rows(counts: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, counts.tolist()))


def _parts(values: Sequence[int], number: int) -> list[Sequence[int]]:
    size = len(values) // number
    return [values[i * size : (i + 1) * size] for i in range(number)]


def send_to_experts(x: Tensor, dispatch: Dispatch, axes: ExpertAxes) -> Tensor:
    """Tokens [T, D] to the rows of this rank's experts [sum of counts, D], sorted by expert.

    Sends: all_to_all over ep; with etp and sp an all_gather over etp; backward the mirror, without sp an all_reduce over etp.
    """
    with scope.in_module(names.DISPATCH):
        rows = _Copies.apply(x, dispatch.order)
        rows = all_to_all(rows, axes.ep, dispatch.sent, dispatch.received)
    rows = _regroup(rows, dispatch.blocks)
    with scope.in_module(names.EXPERTS):
        if not axes.gathers:
            return copy_to(rows, axes.etp)
        rows = gather_from(_padded(rows, _longest(dispatch)), axes.etp, 0)
    return _regroup(_without_padding(rows, dispatch), dispatch.by_etp)


def bring_back(rows: Tensor, dispatch: Dispatch, axes: ExpertAxes) -> Tensor:
    """The experts' outputs [sum of counts, D], summands over etp, to this rank's copies [T k, D], sorted by expert.

    Sends: with sp a reduce_scatter over etp, else an all_reduce; all_to_all over ep; backward the mirror.
    """
    with scope.in_module(names.EXPERTS):
        if axes.gathers:
            parts = _ungroup(rows, dispatch.by_etp).split(list(map(sum, dispatch.by_etp)))
            rows = torch.cat([_padded(part, _longest(dispatch)) for part in parts])
            rows = reduce_scatter_to(rows, axes.etp, 0)[: sum(dispatch.by_etp[axes.etp.place])]
        else:
            rows = reduce_from(rows, axes.etp)
    with scope.in_module(names.COMBINE):
        return all_to_all(_ungroup(rows, dispatch.blocks), axes.ep, dispatch.received, dispatch.sent)


def combine(copies: Tensor, weights: Tensor, dispatch: Dispatch) -> Tensor:
    """The weighted sum of each token's copies: [T k, D] (sorted by expert) and weights [T, k] to [T, D]. Keeps the copies."""
    result: Tensor = _Combine.apply(copies, weights, dispatch.order)
    return result


def run_experts(
    rows: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activate: Callable[[Tensor], Tensor],
    dispatch: Dispatch,
    axes: ExpertAxes,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """Each local expert on its rows [sum of counts, D], to its summand over etp of the output, of the same shape.

    gate_up [L 2F/etp, D] (bias [L 2F/etp]); activate: [n, 2F/etp] to [n, F/etp]; down [L D, F/etp] (bias [L D], whole on every etp rank).
    """
    hidden = activate(grouped_linear(rows, gate_up, gate_up_bias, dispatch.counts))
    return grouped_linear(hidden, down, down_bias, dispatch.counts, bias_share=axes.etp.size)


class _Copies(torch.autograd.Function):
    """Row order[i] // k of x at place i; the gradient of a token is the sum of its copies'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        ctx.shape = x.shape
        return x.index_select(0, order // _per_token(order, x.shape[0]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        token = order // _per_token(order, ctx.shape[0])
        return grad.new_zeros(ctx.shape).index_add_(0, token, grad), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, copies: Tensor, weights: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(copies, weights, order)
        scaled = copies * weights.flatten()[order, None].to(copies.dtype)
        result = copies.new_zeros((weights.shape[0], copies.shape[1]))
        return result.index_add_(0, order // weights.shape[1], scaled)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        copies, weights, order = ctx.saved_tensors
        of_copy = grad.index_select(0, order // weights.shape[1])
        grad_copies = of_copy * weights.flatten()[order, None].to(grad.dtype)
        grad_weights = torch.empty_like(weights).flatten()
        grad_weights[order] = (of_copy * copies).sum(-1).to(weights.dtype)
        return grad_copies, grad_weights.view_as(weights), None


def _per_token(order: Tensor, tokens: int) -> int:
    return max(order.shape[0] // max(tokens, 1), 1)


def _regroup(rows: Tensor, blocks: Sequence[Sequence[int]]) -> Tensor:
    """Rows sorted by source and then by expert, to rows sorted by expert and then by source."""
    if len(blocks) == 1:
        return rows
    parts = rows.split([count for source in blocks for count in source])
    num_experts = len(blocks[0])
    return torch.cat([parts[s * num_experts + e] for e in range(num_experts) for s in range(len(blocks))])


def _ungroup(rows: Tensor, blocks: Sequence[Sequence[int]]) -> Tensor:
    """The way back of _regroup."""
    return _regroup(rows, list(zip(*blocks, strict=True))) if len(blocks) > 1 else rows


def _longest(dispatch: Dispatch) -> int:
    return max(map(sum, dispatch.by_etp))


def _padded(rows: Tensor, length: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, length - rows.shape[0])) if length > rows.shape[0] else rows


def _without_padding(rows: Tensor, dispatch: Dispatch) -> Tensor:
    parts = rows.split(_longest(dispatch)) if _longest(dispatch) else [rows] * len(dispatch.by_etp)
    return torch.cat([part[: sum(counts)] for part, counts in zip(parts, dispatch.by_etp, strict=True)])


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, counts: tuple[int, ...], bias_share: int, later: PutOff | None
    ) -> Tensor:
        ctx.counts, ctx.later = counts, later
        ctx.save_for_backward(x, weight)
        matrices = weight.unflatten(0, (len(counts), -1))
        result = x.new_empty((x.shape[0], matrices.shape[1]))
        biases = None if bias is None else bias.unflatten(0, (len(counts), -1)) / bias_share
        for expert, (rows, out) in enumerate(zip(x.split(counts), result.split(counts), strict=True)):
            if rows.shape[0]:
                torch.mm(rows, matrices[expert].T, out=out)
                if biases is not None:
                    out += biases[expert]
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad = grad.contiguous()
        grad_x = torch.empty_like(x) if needs_x else None
        if grad_x is not None:
            matrices = weight.unflatten(0, (len(ctx.counts), -1))
            for expert, rows in _expert_rows(ctx.counts):
                grad_x[rows] = grad[rows] @ matrices[expert]
        grad_weight, grad_bias = None, None
        if ctx.later is not None:
            with_bias = len(ctx.later.parameters) > 1
            ctx.later.leave(lambda: _grouped_weights(grad, x, weight, ctx.counts, True, with_bias))
        elif needs_weight or needs_bias:
            found = iter(_grouped_weights(grad, x, weight, ctx.counts, needs_weight, needs_bias))
            grad_weight = next(found) if needs_weight else None
            grad_bias = next(found) if needs_bias else None
        return grad_x, grad_weight, grad_bias, None, None, None


def _expert_rows(counts: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """The experts that have rows, and which."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            yield expert, slice(start, start + count)
        start += count


def _grouped_weights(grad: Tensor, x: Tensor, weight: Tensor, counts: Sequence[int], matrices: bool, biases: bool) -> tuple[Tensor, ...]:
    """Gradients of the experts' matrices [L out, in] and biases [L out], as far as they are wanted.

    Zeros, not nothing, for an expert without rows: every rank has every gradient, and reduces it.
    """
    of_matrices = torch.zeros_like(weight).unflatten(0, (len(counts), -1)) if matrices else None
    of_biases = grad.new_zeros((len(counts), weight.shape[0] // len(counts))) if biases else None
    for expert, rows in _expert_rows(counts):
        if of_matrices is not None:
            torch.mm(grad[rows].T, x[rows], out=of_matrices[expert])
        if of_biases is not None:
            of_biases[expert] = grad[rows].sum(0)
    return tuple(found.flatten(0, 1) for found in (of_matrices, of_biases) if found is not None)


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, counts: Sequence[int], bias_share: int = 1) -> Tensor:
    """One linear layer per expert: rows x [n, in], sorted by expert, to [n, out]; weight [L out, in], bias [L out]. Keeps x.

    bias_share: the result is a summand of that many ranks', all with the same bias: each adds its share of it. All of
    them see all rows, so each computes the whole gradient of the bias, and nothing has to be sent for it.
    """
    later = put_off(weight, bias)
    seen_bias = None if bias is None else seen(bias, later)
    result: Tensor = _GroupedLinear.apply(x, seen(weight, later), seen_bias, tuple(counts), bias_share, later)
    return result


def sum_balance_statistics(statistics: Tensor, cp: Axis, tp: Axis, sp: bool) -> Tensor:
    """[2, E] of this rank's tokens to those of the whole micro-batch: an all_reduce over cp, and over tp with sp; backward nothing.

    Its gradient counts each rank's own tokens once, so the gradients of the ranks sum to the micro-batch's.
    """
    total = reduce_from(statistics, cp)
    return reduce_from(total, tp) if sp else total
