"""One optimizer step of a layout on this rank (DESIGN section 4.1, from top to bottom).

The count of labels first, so that every loss is divided by the whole job's; then forward and backward of each micro-batch, of the whole
model (whole_model.py) or of this rank's stages (pipeline/); the reductions that the ZeRO stage leaves for the end; clipping by the norm
over all ranks; AdamW; and under zero=1 and 2 the gather of what was updated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.runtime.data_parallel.buckets import Buckets
from meshwright.runtime.data_parallel.fully_sharded import FullySharded
from meshwright.runtime.data_parallel.shares import AdamW, Share, clip_scale, count_tokens, gradient_norm
from meshwright.runtime.data_parallel.staged import StagedBuckets, StagedFullySharded
from meshwright.runtime.groups import Axis, ProcessGroups
from meshwright.runtime.loss_scale import loss_scale
from meshwright.runtime.parallel.comm import all_reduce
from meshwright.runtime.parallel.model import ChunkPlan, RankModel, local_tensors
from meshwright.runtime.parallel.sequence import take
from meshwright.runtime.parallel.setting import MicroBatch, make_setting
from meshwright.runtime.pipeline.executor import Stages, chunk_plans, held_stages
from meshwright.runtime.pipeline.sums import TABLE, sum_mirrored, sum_shared_table
from meshwright.runtime.reference.loss import token_count
from meshwright.runtime.reference.moe import updated_selection_bias
from meshwright.runtime.reference.train import Precision, Recipe
from meshwright.runtime.scope import at, in_module
from meshwright.runtime.whole_model import WholeModel
from meshwright.schedule import Schedule
from meshwright.spec import names
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model


@dataclass(frozen=True)
class StepResult:
    """What a step gave this rank.

    Attributes:
        loss: this rank's summand, a scalar: the sum over all ranks is the job's loss.
        gradient_norm: of the whole model, before clipping.
        gradients: of this rank's shares, before clipping; the next step writes over them.
    """

    loss: Tensor
    gradient_norm: Tensor
    gradients: tuple[Tensor, ...]


class Training:
    """The state of one rank: its part of the model, its shares of optimizer state.

    Args:
        groups: of this rank. seq: S.
        gathered: zero=3 computes in ``precision.parameters`` and keeps shards in the master's dtype where this is set (``fsdp``).
        seed: of the weights; None leaves the model on the meta device until ``give_storage``.
        schedule: of a layout with pipeline stages; None without.
    """

    def __init__(
        self, model: Model, layout: Layout, groups: ProcessGroups, seq: int, precision: Precision, recipe: Recipe, seed: int | None,
        gathered: bool = False, schedule: Schedule | None = None,
    ) -> None:  # fmt: skip
        self.recipe, self.groups, self.layout, self.model, self.precision = recipe, groups, layout, model, precision
        self.schedule = schedule
        self.setting = make_setting(model, layout, groups, seq, precision.parameters)
        plans = [ChunkPlan(layers=range(model.num_layers))] if schedule is None else chunk_plans(model, layout, schedule.num_stages)
        held = plans if schedule is None else [plans[stage] for stage in held_stages(schedule, groups["pp"].place)]
        wide = layout.zero == 3 and gathered
        stored = precision.master if wide else precision.parameters
        tensors = local_tensors(self.setting, held, seed, precision.parameters, stored, precision.master)
        self.part = RankModel(self.setting, held, tensors, recipe.mtp_weight)
        self._passes: WholeModel | Stages = WholeModel(self.part)
        if schedule is not None:
            stream = (layout.mb, len(self.setting.stream_positions), model.hidden_size)
            self._passes = Stages(self.part, schedule, groups["pp"], plans, stream, precision.parameters)
        if layout.zero == 3:  # FSDP2 cuts parameters before they have storage, if they have none yet
            args = groups, layout.zero_variant, precision.parameters, precision.gradients
            units = self.part.units()
            self.engine: Any = FullySharded(units, *args) if schedule is None else StagedFullySharded(units, self.part, *args)
        if seed is not None:
            self._start()

    @property
    def saved_bytes(self) -> dict[str, int]:
        """See proof_job.RankResult."""
        return self._passes.saved_bytes

    @property
    def most_in_flight(self) -> int:
        """See proof_job.RankResult."""
        return self._passes.most_in_flight if isinstance(self._passes, Stages) else 1

    def give_storage(self) -> None:
        """Uninitialised storage for a model on the meta device; under a fake mode it takes no memory."""
        self.part.to_empty(device="cpu")
        self._start()

    def _start(self) -> None:
        """The rest, which needs the parameters' storage."""
        precision, recipe = self.precision, self.recipe
        if self.layout.zero < 3:
            make = Buckets if self.schedule is None else StagedBuckets
            self.engine = make(self.part.units(), self.groups, self.layout.zero, precision.gradients)
        for share in self.engine.shares:
            share.copies *= self._stage_copies(share)
        self.optimizer = AdamW(
            self.engine.shares, precision.master, recipe.learning_rate, betas=recipe.betas, eps=recipe.eps, weight_decay=recipe.weight_decay
        )

    def step(self, batches: Sequence[MicroBatch]) -> StepResult:
        """One optimizer step over this rank's micro-batches (whole sequences, the same on every rank of its cp, tp and pp)."""
        scale = loss_scale(self.model, self.layout, self._count(batches), len(batches))
        ran = self._passes.run(self.engine, batches, scale)
        with at(phase="reduce"):
            self.engine.finish_gradients()
            self._sum_over_stages()
            gradients = tuple(share.gradient for share in self.engine.shares)
            norm = gradient_norm(self.engine.shares, self.groups["world"])
            self._move_selection_biases(ran.counts)
        with at(phase="optimizer"):
            self.optimizer.step(clip_scale(norm, self.recipe.clip_norm))
            self.engine.publish_weights()
        return StepResult(ran.loss, norm, gradients)

    def shares(self) -> list[tuple[Share, Tensor]]:
        """This rank's shares, each with the optimizer's weight."""
        return list(zip(self.engine.shares, self.optimizer.master, strict=True))

    def buffers(self) -> Mapping[str, Tensor]:
        """What moves by other means than a gradient, by full name."""
        return dict(self.part.named_buffers())

    def _count(self, batches: Sequence[MicroBatch]) -> Tensor:
        """Labels that count, over all data, an int64 scalar; each rank counts its cp place's tokens."""
        own = torch.stack([token_count(take(batch.labels, self.setting.positions)) for batch in batches]).sum()
        return count_tokens(own, self.groups["dp_cp"])

    @property
    def _mirrored(self) -> bool:
        """DualPipe: another rank holds the same stages."""
        return self.schedule is not None and self.schedule.copies > 1

    @property
    def _shares_table(self) -> bool:
        """Whether the other end of the pipeline holds the embedding's table, too. A rank with both ends holds one."""
        chunks = self.part.chunks
        one_end = any(chunk.first for chunk in chunks) != any(chunk.last for chunk in chunks)
        return one_end and (self.model.tied_embeddings or self.model.mtp_layers > 0)

    def _stage_copies(self, share: Share) -> int:
        """Pipeline ranks that hold the same parameter."""
        return 2 if self._mirrored or (self._shares_table and share.name == TABLE) else 1

    def _sum_over_stages(self) -> None:
        if self._mirrored:
            sum_mirrored(self.engine.shares, self.groups["mirror"])
        if self._shares_table:
            sum_shared_table(self.engine.shares, self.groups["embedding"])

    def _move_selection_biases(self, chosen: Mapping[int, Tensor]) -> None:
        """Loss-free balancing: by each expert's load over the whole step, one all_reduce per layer."""
        moe = self.model.moe
        if moe is None or not moe.selection_bias:
            return
        axis: Axis = self.groups["dp_cp_tp" if self.setting.sp else "dp_cp"]
        buffers = self.buffers()
        for layer in sorted(chosen):
            with in_module(names.layer(layer, names.ROUTER)):
                loads = all_reduce(chosen[layer].clone(), axis)
                if self._mirrored:
                    loads = all_reduce(loads, self.groups["mirror"])
            bias = buffers[names.layer(layer, f"{names.ROUTER}.selection_bias")]
            bias.copy_(updated_selection_bias(bias, loads))
