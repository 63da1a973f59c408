"""Data parallelism of a pipeline rank: units are gathered and reduced when the schedule's passes say so, not from hooks.

Passes of several micro-batches mix, and a backward may come in two halves. So each pass gathers the units that it needs, frees them
behind it, and hands over the gradients that are complete (engine of pipeline/chunk.py):

    engine.begin_step()
    for each pass: engine.gather(unit); ...; engine.free(unit)     after a forward or an input half
                   engine.gather(unit); ...; engine.reduce(unit, last)     after a whole backward; without a gather after a weight half
    engine.finish_gradients(); ...; engine.publish_weights()

``last``: no other micro-batch's gradient of the unit is to come in this step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from meshwright.runtime import scope
from meshwright.runtime.data_parallel.buckets import Buckets
from meshwright.runtime.data_parallel.fully_sharded import FullySharded
from meshwright.runtime.data_parallel.shares import Share
from meshwright.runtime.data_parallel.units import Unit
from meshwright.runtime.groups import ProcessGroups

scope.transparent(__file__)


class StagedDataParallel(Protocol):
    """See the module's docstring. ``acts_between_units``: whether ``gather``, ``free`` or ``reduce`` send anything."""

    @property
    def shares(self) -> list[Share]: ...

    @property
    def acts_between_units(self) -> bool: ...

    def begin_step(self) -> None: ...

    def gather(self, unit: str, wait: bool = True) -> None:
        """Have the unit's parameters whole, or on their way."""

    def free(self, unit: str) -> None: ...

    def reduce(self, unit: str, last: bool) -> None: ...

    def finish_gradients(self) -> None:
        """Every share's gradient is this stage's when this returns."""

    def publish_weights(self) -> None: ...


class StagedBuckets(Buckets):
    """zero=0, 1 and 2: one reduction behind the last backward of a unit, or one behind each."""

    counts_arrivals = False

    @property
    def acts_between_units(self) -> bool:
        """Not where a rank has no others to sum with."""
        parts = [part for bucket in self._buckets for part in bucket.parts]
        return self._groups["kv"].group is not None or any(max(part.copies.size, part.shard.size) > 1 for part in parts)

    def begin_step(self) -> None:
        """Forget the last step's gradients."""
        self.begin_micro_batch(first=True, last=False)
        self._reducing = False

    def gather(self, unit: str, wait: bool = True) -> None:
        """Nothing: every rank has whole parameters."""

    def free(self, unit: str) -> None:
        """Nothing."""

    def reduce(self, unit: str, last: bool) -> None:
        """Send what has come together, if it is time; other passes compute meanwhile."""
        if not last and self._zero < 2:
            return
        bucket = next(bucket for bucket in self._buckets if bucket.unit.name == unit)
        self._take_over(bucket)
        self._send(bucket)
        bucket.forget_gradients()

    def finish_gradients(self) -> None:
        """Wait for what is on its way; then as without stages."""
        for bucket in self._buckets:
            self._take_over(bucket)
        super().finish_gradients()


class StagedFullySharded(FullySharded):
    """zero=3: torch's FSDP2 groups, driven by hand.

    root: the module that contains all units, with or without parameters of its own.
    """

    acts_between_units = True

    def __init__(
        self,
        units: Sequence[Unit],
        root: nn.Module,
        groups: ProcessGroups,
        variant: str,
        gathered_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
    ) -> None:
        super().__init__(units, groups, variant, gathered_dtype, reduce_dtype, root)
        self._modules = {unit.name: unit.module for unit in units}
        self._ready = False

    def begin_step(self) -> None:
        """Forget the last step's gradients."""
        if not self._ready:
            assert isinstance(self._root, FSDPModule)
            self._root._get_fsdp_state()._lazy_init()
            self._ready = True
        for parameter in self._root.parameters():
            parameter.grad = None

    def gather(self, unit: str, wait: bool = True) -> None:
        """FSDP2 sends nothing where the unit is whole or on its way."""
        for group in self._param_groups(unit):
            group.unshard(async_op=True)
        if wait:
            for group in self._param_groups(unit):
                group.wait_for_unshard()

    def free(self, unit: str) -> None:
        """Not with ``zero=3:keep``, which gathers once per step."""
        if self._variant != "keep":
            for group in self._param_groups(unit):
                group.reshard()

    def reduce(self, unit: str, last: bool) -> None:
        """Scatter the gradients, or keep them whole for the last time; the unit is freed."""
        for group in reversed(self._param_groups(unit)):  # the experts first, as FSDP2's own hooks
            group.reduce_grads, group.all_reduce_grads = last or not self._variant, last
            group.reshard_after_backward = last or self._variant != "keep"
            group.reduce_scatter_unused_params = True  # a root with both ends of the model gets gradients of one end at a time
            group.post_backward()

    def finish_gradients(self) -> None:
        """Wait for FSDP2's reductions; then as without stages."""
        for unit in self._modules:
            for group in self._param_groups(unit):
                group.finalize_backward()
        super().finish_gradients()

    def _param_groups(self, unit: str) -> Sequence[Any]:
        module = self._modules[unit]
        assert isinstance(module, FSDPModule)
        groups: Sequence[Any] = module._get_fsdp_state()._fsdp_param_groups
        return groups
