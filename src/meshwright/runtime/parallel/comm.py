"""Collectives on local tensors, and as autograd functions in pairs: what is sent forward, and what backward.

A name says the forward. Without a group (an axis of one rank) each is the identity and sends nothing.

| function | forward | backward |
|---|---|---|
| copy_to | - | all_reduce |
| reduce_from | all_reduce | - |
| gather_from | all_gather | reduce_scatter |
| reduce_scatter_to | reduce_scatter | all_gather |
| split_to | own part | all_gather |
| join_from | all_gather | own part |
| all_to_all | all_to_all | all_to_all back |

copy_to and reduce_from are f and g of Megatron-LM (arXiv 1909.08053, section 3); gather_from and reduce_scatter_to are g and
g-bar of its sequence parallelism (arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.runtime import scope
from meshwright.runtime.groups import Axis

scope.transparent(__file__)


@dataclass(frozen=True, slots=True)
class Pending:
    """A collective on its way; ``wait`` gives its result."""

    work: Any
    result: Callable[[], Tensor]

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
        return self.result()


def _done(x: Tensor) -> Pending:
    return Pending(None, lambda: x)


def start_all_reduce(x: Tensor, axis: Axis, op: Any = dist.ReduceOp.SUM) -> Pending:
    """The sum (or ``op``) over the group; x itself is overwritten."""
    if axis.group is None:
        return _done(x)
    x = x.contiguous()
    return Pending(dist.all_reduce(x, op, axis.group, async_op=True), lambda: x)


def start_all_gather(x: Tensor, axis: Axis, dim: int = 0) -> Pending:
    """The parts of all ranks, in order, joined along ``dim``."""
    if axis.group is None:
        return _done(x)
    part = x.movedim(dim, 0).contiguous()
    whole = part.new_empty((part.shape[0] * axis.size, *part.shape[1:]))
    work = dist.all_gather_single(whole, part, axis.group, async_op=True)
    return Pending(work, lambda: whole.movedim(0, dim))


def start_reduce_scatter(x: Tensor, axis: Axis, dim: int = 0) -> Pending:
    """This rank's part, along ``dim``, of the sum over the group. dim must be divisible by the group's size."""
    if axis.group is None:
        return _done(x)
    whole = x.movedim(dim, 0).contiguous()
    part = whole.new_empty((whole.shape[0] // axis.size, *whole.shape[1:]))
    work = dist.reduce_scatter_single(part, whole, group=axis.group, async_op=True)
    return Pending(work, lambda: part.movedim(0, dim))


def all_reduce(x: Tensor, axis: Axis, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """See start_all_reduce."""
    return start_all_reduce(x, axis, op).wait()


def all_gather(x: Tensor, axis: Axis, dim: int = 0) -> Tensor:
    """See start_all_gather."""
    return start_all_gather(x, axis, dim).wait()


def reduce_scatter(x: Tensor, axis: Axis, dim: int = 0) -> Tensor:
    """See start_reduce_scatter."""
    return start_reduce_scatter(x, axis, dim).wait()


def own_part(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """This rank's part of x along ``dim``."""
    return x.chunk(axis.size, dim)[axis.place] if axis.size > 1 else x


def exchange_rows(x: Tensor, axis: Axis, sent: Sequence[int] | None = None, received: Sequence[int] | None = None) -> Tensor:
    """all_to_all of rows (dim 0): ``sent[i]`` of them to rank i, ``received[i]`` from it; equal parts if None."""
    if axis.group is None:
        return x
    rows = x.shape[0] if received is None else sum(received)
    result = x.new_empty((rows, *x.shape[1:]))
    splits = (None, None) if sent is None or received is None else (list(received), list(sent))
    dist.all_to_all_single(result, x.contiguous(), *splits, group=axis.group)
    return result


def start_shift(x: Tensor, axis: Axis, tag: int = 0) -> Pending:
    """Send x to the next rank of the ring and receive the previous one's, of the same shape."""
    if axis.group is None:
        return _done(x)
    sent, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    following, previous = axis.ranks[(axis.place + 1) % axis.size], axis.ranks[axis.place - 1]
    works = [
        dist.isend(sent, following, axis.group, tag),
        dist.irecv(received, previous, axis.group, tag),
    ]

    class Both:
        @staticmethod
        def wait() -> None:
            _ = sent  # kept alive until it has left
            for work in works:
                work.wait()

    return Pending(Both, lambda: received)


class _Pair(torch.autograd.Function):
    """A forward and a backward collective; both are given as functions of the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.origin, ctx.send_back = scope.origin(), backward
        result = forward(x)
        return result.view_as(result) if result is x else result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        with scope.back_at(ctx.origin, "backward_input"):
            return ctx.send_back(grad), None, None


def _apply(x: Tensor, axis: Axis, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Tensor:
    if axis.group is None:
        return x
    result: Tensor = _Pair.apply(x, forward, backward)
    return result


def _same(x: Tensor) -> Tensor:
    return x


def copy_to(x: Tensor, axis: Axis) -> Tensor:
    """Before each rank uses the same x in another way: the gradient is a sum of the ranks' summands."""
    return _apply(x, axis, _same, lambda grad: all_reduce(grad.clone(), axis))


def reduce_from(x: Tensor, axis: Axis) -> Tensor:
    """The sum of the ranks' summands, which all of them go on with in the same way."""
    return _apply(x, axis, lambda part: all_reduce(part.clone(), axis), _same)


def gather_from(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Parts joined along ``dim``; each rank goes on in another way, so gradients are summands."""
    return _apply(x, axis, lambda part: all_gather(part, axis, dim), lambda grad: reduce_scatter(grad, axis, dim))


def reduce_scatter_to(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """This rank's part of the sum of the ranks' summands."""
    return _apply(x, axis, lambda whole: reduce_scatter(whole, axis, dim), lambda grad: all_gather(grad, axis, dim))


def split_to(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """This rank's part of an x that all ranks hold."""
    return _apply(x, axis, lambda whole: own_part(whole, axis, dim).contiguous(), lambda grad: all_gather(grad, axis, dim))


def join_from(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Parts joined along ``dim``, with which all ranks go on in the same way."""
    return _apply(x, axis, lambda part: all_gather(part, axis, dim), lambda grad: own_part(grad, axis, dim).contiguous())


def all_to_all(x: Tensor, axis: Axis, sent: Sequence[int] | None = None, received: Sequence[int] | None = None) -> Tensor:
    """Rows of x (dim 0) to the ranks of the group; the gradient travels back. See exchange_rows."""
    return _apply(x, axis, lambda rows: exchange_rows(rows, axis, sent, received), lambda grad: exchange_rows(grad, axis, received, sent))
