"""zero=3 through torch's FSDP2: parameters sharded over fsdp (experts over edp), gathered unit by unit; with dp_replicate, HSDP.

FSDP2 sums (its divide factor is 1): the loss is divided by the step's token count already, and gloo cannot scale in a reduction.

    zero=3         gather in forward, again in backward (not the root), reduce_scatter in every micro-batch
    zero=3:local   the same gathers; whole gradients are kept, and scattered after the last micro-batch
    zero=3:keep    one gather and one reduce_scatter per step
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import DTensor, Shard

from meshwright.runtime import scope
from meshwright.runtime.data_parallel.packing import own_rows
from meshwright.runtime.data_parallel.shares import Share, sum_over_tensor_ranks
from meshwright.runtime.data_parallel.units import Held, Unit
from meshwright.runtime.groups import ProcessGroups

scope.transparent(__file__)


class FullySharded:
    """The engine of zero=3 (engine.DataParallel).

    Args:
        units: in the order of the forward, the root last.
        root: the module that contains all units; None: the last unit's.
        groups: of this rank. variant: "", "local" or "keep".
        gathered_dtype: that the units compute with. reduce_dtype: of the reduction; shards and their gradients keep the parameters' dtype.

    Raises:
        ValueError: gradients would accumulate in a narrower dtype than they are reduced in (bf16 weights with float32
            gradients): FSDP2 keeps the gradient of a shard in the shard's dtype.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        groups: ProcessGroups,
        variant: str,
        gathered_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
        root: nn.Module | None = None,
    ) -> None:
        self._units, self._groups, self._variant = tuple(units), groups, variant
        root = root or units[-1].module
        self._wholes = {(unit.name, held.name): unit.parameter(held).detach().to("meta") for unit in units for held in unit.held}
        stored = next(iter(root.parameters())).dtype
        if torch.promote_types(stored, reduce_dtype) != stored:
            raise ValueError(f"zero=3 accumulates gradients in the dtype of its shards, {stored}, which is narrower than {reduce_dtype}")
        self._shard_units(root, gathered_dtype, reduce_dtype)
        assert isinstance(root, FSDPModule)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self._root = root
        self._gather_ahead()

    @cached_property
    def shares(self) -> list[Share]:
        """Made when first asked for: parameters on the meta device may be given storage until then."""
        return [self._share(unit, held, self._wholes[unit.name, held.name]) for unit in self._units for held in unit.held]

    def begin_micro_batch(self, first: bool, last: bool) -> None:
        """Tell FSDP2 what to keep and what to send in this micro-batch."""
        once = self._variant in ("local", "keep")
        self._root.set_requires_gradient_sync(last or not once)
        self._root.set_requires_all_reduce(last)
        if self._variant == "keep":
            self._root.set_reshard_after_backward(last)
        self._root.set_is_last_backward(last)
        if first:
            for parameter in self._root.parameters():
                parameter.grad = None

    def end_micro_batch(self) -> None:
        """Nothing: FSDP2 waits for its own reductions at the end of a backward."""

    def finish_gradients(self) -> None:
        """Take the shards' gradients over, and sum those that are summands over tp. FSDP2 has summed the replicas."""
        by_name = {unit.name: unit for unit in self._units}
        for share in self.shares:
            gradient = by_name[share.unit].parameter(share.held).grad
            share.gradient = torch.zeros_like(share.weight) if gradient is None else _local(gradient)
        sum_over_tensor_ranks(self.shares, self._groups["tp"])

    def publish_weights(self) -> None:
        """Nothing: the next forward gathers."""

    def _shard_units(self, root: nn.Module, gathered_dtype: torch.dtype, reduce_dtype: torch.dtype) -> None:
        policy = MixedPrecisionPolicy(param_dtype=gathered_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
        dense, experts = self._mesh_info("fsdp"), None
        if any(held.expert for unit in self._units for held in unit.held):
            experts = self._mesh_info("edp")
        for unit in self._units:
            own = {unit.parameter(held) for held in unit.held if held.expert}

            def place(parameter: nn.Parameter, own: set[nn.Parameter] = own) -> ShardPlacementResult:
                info = experts if parameter in own and experts is not None else dense
                return ShardPlacementResult(placement=Shard(0), mesh_info=info)

            # None is FSDP2's default: every unit is freed after its forward but the root, whose backward comes at once.
            reshard = False if self._variant == "keep" else None
            fully_shard(
                unit.module, mesh=dense.mesh, mp_policy=policy, reshard_after_forward=reshard, shard_placement_fn=place if own else None
            )
        if not isinstance(root, FSDPModule):  # without parameters of its own: between the ends of a pipeline
            fully_shard(root, mesh=dense.mesh, mp_policy=policy)

    def _gather_ahead(self) -> None:
        """In the backward each unit gathers the one before it. FSDP2 by itself gathers the experts alone of a unit that has two groups of
        parameters, where the unit after it has one."""
        backwards = [unit.module for unit in reversed(self._units)]
        for module, before in pairwise(backwards):
            assert isinstance(module, FSDPModule) and isinstance(before, FSDPModule)
            module.set_modules_to_backward_prefetch([before])

    def _mesh_info(self, shard: str) -> FSDPMeshInfo:
        mesh = self._groups.device_mesh(shard, "dp_replicate")
        return FSDPMeshInfo(mesh, shard_mesh_dim=0) if mesh.ndim == 1 else HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)

    def _share(self, unit: Unit, held: Held, whole: Tensor) -> Share:
        axis = self._groups["edp" if held.expert else "fsdp"]
        weight = _local(unit.parameter(held))
        rows = own_rows(whole.shape[0], axis.size, axis.place)
        assert weight.shape[0] == rows.stop - rows.start
        return Share(
            unit=unit.name, held=held, weight=weight, gradient=torch.zeros_like(weight), whole=whole, first_row=rows.start,
            ranks=axis.size, copies=held.copies * self._groups["dp_replicate"].size,
        )  # fmt: skip


def _local(tensor: Tensor) -> Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()
