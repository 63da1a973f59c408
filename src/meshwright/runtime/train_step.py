"""One optimizer step of a layout on this rank, without a pipeline (DESIGN section 4.1, from top to bottom).

The count of labels first, so that every loss is divided by the whole job's; then forward and backward of each micro-batch; the reductions
that the ZeRO stage leaves for the end; clipping by the norm over all ranks; AdamW; and under zero=1 and 2 the gather of what was updated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.runtime import saved_bytes
from meshwright.runtime.data_parallel.buckets import Buckets
from meshwright.runtime.data_parallel.engine import DataParallel
from meshwright.runtime.data_parallel.fully_sharded import FullySharded
from meshwright.runtime.data_parallel.shares import AdamW, Share, clip_scale, count_tokens, gradient_norm
from meshwright.runtime.groups import Axis, ProcessGroups
from meshwright.runtime.parallel.comm import all_reduce
from meshwright.runtime.parallel.model import Chunk, ChunkOutput, ChunkPlan, local_tensors
from meshwright.runtime.parallel.sequence import take
from meshwright.runtime.parallel.setting import MicroBatch, make_setting
from meshwright.runtime.reference.loss import token_count
from meshwright.runtime.reference.moe import updated_selection_bias
from meshwright.runtime.reference.train import Precision, Recipe
from meshwright.runtime.scope import at, in_module
from meshwright.spec import names
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model


@dataclass(frozen=True)
class StepResult:
    """What a step gave this rank.

    Attributes:
        loss: this rank's summand, a scalar: the sum over all ranks is the job's loss.
        gradient_norm: of the whole model, before clipping. gradients: of this rank's shares, before clipping.
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
    """

    def __init__(
        self, model: Model, layout: Layout, groups: ProcessGroups, seq: int, precision: Precision, recipe: Recipe, seed: int | None,
        gathered: bool = False,
    ) -> None:  # fmt: skip
        self.recipe, self.groups, self.layout, self.model, self.precision = recipe, groups, layout, model, precision
        self.setting = make_setting(model, layout, groups, seq, precision.parameters)
        plan = ChunkPlan(layers=range(model.num_layers))
        wide = layout.zero == 3 and gathered
        stored = precision.master if wide else precision.parameters
        tensors = local_tensors(self.setting, plan, seed, precision.parameters, stored, precision.master)
        self.chunk = Chunk(self.setting, plan, tensors, recipe.mtp_weight)
        self.saved_bytes: dict[str, int] = {}
        if layout.zero == 3:  # FSDP2 cuts parameters before they have storage, if they have none yet
            self.engine: DataParallel = FullySharded(
                self.chunk.units(), groups, layout.zero_variant, precision.parameters, precision.gradients
            )
        if seed is not None:
            self._start()

    def give_storage(self) -> None:
        """Uninitialised storage for a model on the meta device; under a fake mode it takes no memory."""
        self.chunk.to_empty(device="cpu")
        self._start()

    def _start(self) -> None:
        """The rest, which needs the parameters' storage."""
        precision, recipe = self.precision, self.recipe
        if self.layout.zero < 3:
            self.engine = Buckets(self.chunk.units(), self.groups, self.layout.zero, precision.gradients)
        self.optimizer = AdamW(
            self.engine.shares, precision.master, recipe.learning_rate, betas=recipe.betas, eps=recipe.eps, weight_decay=recipe.weight_decay
        )

    def step(self, batches: Sequence[MicroBatch]) -> StepResult:
        """One optimizer step over this rank's micro-batches (whole sequences, the same on every rank of its cp and tp)."""
        count = self._count(batches)
        loss = torch.zeros(())
        chosen: dict[int, Tensor] = {}
        for index, batch in enumerate(batches):
            self.engine.begin_micro_batch(first=index == 0, last=index == len(batches) - 1)
            with at(micro_batch=index):
                output = self._forward(batch)
                objective = self._objective(output, count, len(batches))
                with at(phase="backward_input"):
                    objective.backward()
                self.engine.end_micro_batch()
            loss = loss + self._reported(output, count, len(batches))
            for layer, counts in output.counts.items():
                chosen[layer] = chosen[layer] + counts if layer in chosen else counts
        with at(phase="reduce"):
            self.engine.finish_gradients()
            gradients = tuple(share.gradient.detach().clone() for share in self.engine.shares)
            norm = gradient_norm(self.engine.shares, self.groups["world"])
            self._move_selection_biases(chosen)
        with at(phase="optimizer"):
            self.optimizer.step(clip_scale(norm, self.recipe.clip_norm))
            self.engine.publish_weights()
        return StepResult(loss, norm, gradients)

    def shares(self) -> list[tuple[Share, Tensor]]:
        """This rank's shares, each with the optimizer's weight."""
        return list(zip(self.engine.shares, self.optimizer.master, strict=True))

    def buffers(self) -> Mapping[str, Tensor]:
        """What moves by other means than a gradient, by full name."""
        return dict(self.chunk.named_buffers())

    def _count(self, batches: Sequence[MicroBatch]) -> Tensor:
        """Labels that count, over all data, an int64 scalar; each rank counts its cp place's tokens."""
        own = torch.stack([token_count(take(batch.labels, self.setting.positions)) for batch in batches]).sum()
        return count_tokens(own, self.groups["dp_cp"])

    def _forward(self, batch: MicroBatch) -> ChunkOutput:
        with at(phase="forward"):
            if self.saved_bytes:
                return self.chunk.run(batch)
            with saved_bytes.measured(self.chunk.parameters()) as found:
                output = self.chunk.run(batch)
        self.saved_bytes = found
        return output

    def _objective(self, output: ChunkOutput, count: Tensor, micro_batches: int) -> Tensor:
        """What is differentiated on this rank. The balance loss is the mean over the job's micro-batches, of which every rank of one
        has the number."""
        total = output.cross_entropy
        assert total is not None
        objective = total / count
        if output.balance is not None:
            objective = objective + self._balance_weight(micro_batches) * output.balance
        return objective

    def _balance_weight(self, micro_batches: int) -> float:
        assert self.model.moe is not None
        return self.model.moe.aux_loss_coefficient / (micro_batches * self.layout.dp)

    def _reported(self, output: ChunkOutput, count: Tensor, micro_batches: int) -> Tensor:
        """The same, divided by the number of ranks that have the same."""
        assert output.cross_entropy is not None
        tp, cp = self.layout.tp, self.layout.cp
        same = 1 if self.setting.sp and not self.layout.vocab else tp
        value = output.cross_entropy.detach() / count / same
        if output.balance is not None:
            value = value + self._balance_weight(micro_batches) * output.balance.detach() / (tp * cp)
        return value

    def _move_selection_biases(self, chosen: Mapping[int, Tensor]) -> None:
        """Loss-free balancing: by each expert's load over the whole step, one all_reduce per layer."""
        moe = self.model.moe
        if moe is None or not moe.selection_bias:
            return
        axis: Axis = self.groups["dp_cp_tp" if self.setting.sp else "dp_cp"]
        buffers = self.buffers()
        for layer, counts in chosen.items():
            with in_module(names.layer(layer, names.ROUTER)):
                loads = all_reduce(counts.clone(), axis)
            bias = buffers[names.layer(layer, f"{names.ROUTER}.selection_bias")]
            bias.copy_(updated_selection_bias(bias, loads))
