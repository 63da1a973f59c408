"""ZeRO stages 0, 1 and 2 (Rajbhandari et al., arXiv 1910.02054): our own buckets, one per unit, sent while the backward goes on.

    zero=0   once per step: all_reduce of the unit's gradients over all replicas
    zero=1   once per step: reduce_scatter over the shards, all_reduce of the shard over dp_replicate; all_gather after the optimizer
    zero=2   the same, but the reduce_scatter after every micro-batch: no rank keeps whole gradients

Units leave in one order on every rank: the last layer first, the root at last. A unit that is complete before its turn
waits, so no order of hooks can pair up different units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from meshwright.runtime import scope
from meshwright.runtime.data_parallel.packing import own_rows, own_views, pack, pack_own, shard_numel, unpack
from meshwright.runtime.data_parallel.shares import Share, sum_over_tensor_ranks
from meshwright.runtime.data_parallel.units import Held, Unit
from meshwright.runtime.groups import Axis, ProcessGroups
from meshwright.runtime.parallel.comm import Pending, all_gather, all_reduce, start_all_reduce, start_reduce_scatter
from meshwright.spec import names

scope.transparent(__file__)


@dataclass(kw_only=True)
class _Part:
    """The dense or the expert parameters of a unit.

    shard: the axis over which they are cut (an axis of one rank for zero=0). copies: the axis of those with the same shard.
    total: the reduced gradients: [numel] packed for all ranks (zero=0), or this rank's packed shard. stale: it is the last step's.
    """

    held: tuple[Held, ...]
    parameters: list[nn.Parameter]
    shard: Axis
    copies: Axis
    total: Tensor
    stale: bool = False
    shares: list[Share] = field(default_factory=list)
    pending: Pending | None = None


@dataclass(kw_only=True)
class _Bucket:
    """widened: gradients so far, of micro-batches together, by name; only where parameters are narrower than gradients. Else they are
    where autograd adds them up, which costs nothing more.
    """

    unit: Unit
    parts: list[_Part]
    widened: dict[str, Tensor] = field(default_factory=dict)
    arrived: set[str] = field(default_factory=set)

    def complete(self) -> bool:
        return len(self.arrived) == len(self.unit.held)

    def forget_gradients(self) -> None:
        self.widened.clear()
        for part in self.parts:
            for parameter in part.parameters:
                parameter.grad = None


class Buckets:
    """The engine of zero=0, 1 and 2 (engine.DataParallel).

    Args:
        units: in the order of the forward, the root last. groups: of this rank. zero: 0, 1 or 2.
        gradient_dtype: of accumulation and of the reduction.
    """

    counts_arrivals = True
    """Whether a unit is sent as soon as its gradients are there; else its ``_send`` is called."""

    def __init__(self, units: Sequence[Unit], groups: ProcessGroups, zero: int, gradient_dtype: torch.dtype) -> None:
        self._zero, self._groups, self._dtype = zero, groups, gradient_dtype
        self._buckets = [self._make_bucket(unit) for unit in units]
        # The backward meets the layers in reverse; the root has the head and the embedding, so it ends last.
        self._order = [*self._buckets[:-1][::-1], *self._buckets[-1:]]
        self._next = 0
        self._reducing = False
        for bucket in self._buckets:
            for part in bucket.parts:
                for held, parameter in zip(part.held, part.parameters, strict=True):
                    if self.counts_arrivals or parameter.dtype != gradient_dtype:
                        parameter.register_post_accumulate_grad_hook(self._hook(bucket, held))

    @property
    def shares(self) -> list[Share]:
        return [share for bucket in self._buckets for part in bucket.parts for share in part.shares]

    def begin_micro_batch(self, first: bool, last: bool) -> None:
        """See engine.DataParallel."""
        self._next, self._reducing = 0, last or self._zero == 2
        for bucket in self._buckets:
            bucket.arrived.clear()
            if first:
                bucket.forget_gradients()
                for part in bucket.parts:
                    part.stale = True

    def end_micro_batch(self) -> None:
        """Send the units whose parameters did not all take part in this backward, and wait for what is on its way."""
        if not self._reducing:
            return
        for bucket in self._order[self._next :]:
            self._send(bucket)
        self._next = len(self._order)
        for bucket in self._order:
            self._take_over(bucket)
            bucket.forget_gradients()

    def _take_over(self, bucket: _Bucket) -> None:
        """Wait for what the bucket has on its way, and add it up."""
        for part in bucket.parts:
            if part.pending is None:
                continue
            summed, part.pending = part.pending.wait(), None
            if part.stale:
                part.total.copy_(summed)  # nothing to do where it was summed in place
            else:
                part.total += summed
            part.stale = False

    def finish_gradients(self) -> None:
        """Sums over tp, and over the replicas of a shard."""
        for part in (part for bucket in self._buckets for part in bucket.parts if part.stale):
            part.total.zero_()
        sum_over_tensor_ranks(self.shares, self._groups["tp"])
        if self._zero == 0:
            return
        for bucket in self._buckets:
            for part in bucket.parts:
                with scope.at(phase="reduce", module=_module(bucket, part)):
                    part.total.copy_(all_reduce(part.total, part.copies))

    def publish_weights(self) -> None:
        """zero=1, 2: gather the updated shards."""
        if self._zero == 0:
            return
        for bucket in self._buckets:
            for part in bucket.parts:
                if part.shard.size == 1:
                    continue
                wholes = [parameter.data for parameter in part.parameters]
                shard = pack_own([share.weight for share in part.shares], wholes, part.shard.size, wholes[0].dtype)
                with scope.at(phase="optimizer", module=_module(bucket, part)):
                    packed = all_gather(shard, part.shard)
                unpack(packed, wholes, part.shard.size)

    def _hook(self, bucket: _Bucket, held: Held):  # type: ignore[no-untyped-def]
        def accumulated(parameter: Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            if gradient.dtype != self._dtype:
                parameter.grad = None
                if held.name in bucket.widened:
                    bucket.widened[held.name] += gradient
                else:
                    bucket.widened[held.name] = gradient.to(self._dtype)
            bucket.arrived.add(held.name)
            self._send_complete()

        return accumulated

    def _send_complete(self) -> None:
        while self._reducing and self._next < len(self._order) and self._order[self._next].complete():
            self._next += 1
            self._send(self._order[self._next - 1])

    def _send(self, bucket: _Bucket) -> None:
        for part in bucket.parts:
            gradients = [self._gradient(bucket, held, p) for held, p in zip(part.held, part.parameters, strict=True)]
            self._sum_kv_copies(bucket, part, gradients)
            into = part.total if self._zero == 0 and part.stale else None
            packed = pack(gradients, part.shard.size, self._dtype, into)
            with scope.at(phase="reduce", module=_module(bucket, part), **self._when()):
                part.pending = start_all_reduce(packed, part.copies) if self._zero == 0 else start_reduce_scatter(packed, part.shard)

    def _when(self) -> dict[str, None]:
        """What is sent once per step is no micro-batch's."""
        return {"micro_batch": None, "chunk": None} if self._zero < 2 else {}

    def _gradient(self, bucket: _Bucket, held: Held, parameter: nn.Parameter) -> Tensor:
        """Zeros for a parameter that no token met: its group sums it all the same."""
        found = parameter.grad if parameter.dtype == self._dtype else bucket.widened.get(held.name)
        return torch.zeros_like(parameter, dtype=self._dtype) if found is None else found

    def _sum_kv_copies(self, bucket: _Bucket, part: _Part, gradients: list[Tensor]) -> None:
        """Of the projection's weight and bias, by one all_reduce."""
        kv = self._groups["kv"]
        copies = [
            gradient[held.kv_first_row :] for held, gradient in zip(part.held, gradients, strict=True) if held.kv_first_row is not None
        ]
        if kv.group is None or not copies:
            return
        with scope.at(phase="reduce", module=f"{bucket.unit.name}.{names.QKV}", **self._when()):
            total = all_reduce(torch.cat([rows.flatten() for rows in copies]), kv)
        for rows, summed in zip(copies, total.split([rows.numel() for rows in copies]), strict=True):
            rows.copy_(summed.view_as(rows))

    def _make_bucket(self, unit: Unit) -> _Bucket:
        return _Bucket(unit=unit, parts=[self._make_part(unit, held) for held in unit.parts])

    def _make_part(self, unit: Unit, held: tuple[Held, ...]) -> _Part:
        expert = held[0].expert
        if self._zero == 0:
            copies = self._groups["edp_replicate" if expert else "dp_cp"]
            shard = Axis(copies.name, copies.axis, copies.ranks[copies.place : copies.place + 1], 0, None)
        else:
            copies, shard = self._groups["dp_replicate"], self._groups["edp" if expert else "fsdp"]
        parameters = [unit.parameter(each) for each in held]
        wholes = [parameter.data for parameter in parameters]
        total = torch.zeros(shard_numel(wholes, shard.size), dtype=self._dtype)
        part = _Part(held=held, parameters=parameters, shard=shard, copies=copies, total=total)
        views = own_views(total, wholes, shard.size, shard.place)
        for each, whole, gradient in zip(held, wholes, views, strict=True):
            rows = own_rows(whole.shape[0], shard.size, shard.place)
            part.shares.append(
                Share(
                    unit=unit.name, held=each, weight=whole[rows], gradient=gradient, whole=whole, first_row=rows.start,
                    ranks=shard.size, copies=each.copies * copies.size,
                )
            )  # fmt: skip
        return part


def _module(bucket: _Bucket, part: _Part) -> str:
    return f"{bucket.unit.name}.{names.EXPERTS}" if part.held[0].expert else bucket.unit.name
