"""Faults that are put into the executor of pipelines on purpose, as mutations.py's; what each must be found by is in
prove/test_pipeline_mutations.py."""

from __future__ import annotations

from typing import Any

import torch

from meshwright.runtime import train_step, weights_later
from meshwright.runtime.data_parallel import staged
from meshwright.runtime.parallel import model
from meshwright.runtime.pipeline import chunk, executor, messages
from meshwright.schedule import Kind
from mutations import mutation


@mutation
def two_sends_swapped() -> None:
    """The first stage sends its first two micro-batches in the other order; shapes are the same, so nothing stops it."""
    right = executor.Stages.__init__

    def init(self: Any, *args: Any) -> None:
        right(self, *args)
        if self._stages.place == 0:
            sends = [action for action in self._actions if action.kind == Kind.SEND_FORWARD and action.micro_batch < 2]
            rest = [action for action in self._actions if action not in sends]
            second = next(at for at, action in enumerate(rest) if (action.kind, action.micro_batch) == (Kind.FORWARD, 1))
            self._actions = (*rest[: second + 1], *reversed(sends), *rest[second + 1 :])

    executor.Stages.__init__ = init


@mutation
def weight_half_dropped() -> None:
    """The last W of the last stage is left out."""
    right = executor.Stages.__init__

    def init(self: Any, *args: Any) -> None:
        right(self, *args)
        if self._stages.place == len(self._stages.ranks) - 1:
            halves = [action for action in self._actions if action.kind == Kind.BACKWARD_WEIGHT]
            self._actions = tuple(action for action in self._actions if action != halves[-1])

    executor.Stages.__init__ = init


@mutation
def weight_half_computes_nothing() -> None:
    weights_later.WeightHalf.run = lambda self: self.jobs.clear()


@mutation
def shared_table_not_summed() -> None:
    train_step.sum_shared_table = lambda *args: None


@mutation
def norm_counts_shared_table_twice() -> None:
    train_step.Training._stage_copies = lambda self, share: 1


@mutation
def mirrored_stages_not_summed() -> None:
    train_step.sum_mirrored = lambda *args: None


@mutation
def mirrored_loads_not_summed() -> None:
    """Each of DualPipe's copies moves its experts' biases by its own half of the micro-batches."""
    right = train_step.all_reduce
    train_step.all_reduce = lambda x, axis: x if axis.axis == "mirror" else right(x, axis)


@mutation
def reduced_before_the_last_micro_batch() -> None:
    """Two passes of the unit too early: the gradients of the last micro-batches stay behind."""
    right = staged.StagedBuckets.reduce

    def reduce(self: Any, unit: str, last: bool) -> None:
        done = self.__dict__.setdefault("_passes", {})
        done[unit] = 0 if last else done.get(unit, 0) + 1
        if not last:
            right(self, unit, done[unit] == 1)

    staged.StagedBuckets.reduce = reduce


@mutation
def root_reduced_with_the_head_alone() -> None:
    """In a V one rank has both ends of the model; its root leaves when the head's gradients are complete."""
    right = chunk.RootUse.completed
    chunk.RootUse.completed = lambda self: right(self) or self._done == self._passes - 1


@mutation
def gradient_of_the_micro_batch_before() -> None:
    """A buffer is used again too early: each backward gets what the one before it should have had."""
    right = messages.Messages.taken
    before: list[torch.Tensor] = []

    def taken(self: Any, result: Any) -> torch.Tensor:
        tensor = right(self, result)
        if not result[0]:
            return tensor
        before.append(tensor)
        return before[max(len(before) - 2, 0)]

    messages.Messages.taken = taken


@mutation
def activations_kept_for_one_more_micro_batch() -> None:
    """Right numbers and traffic, more memory: what a micro-batch left is freed when the next one's backward is done."""

    class Late(dict[int, Any]):
        last: int | None = None

        def pop(self, micro_batch: int) -> Any:  # type: ignore[override]
            if self.last is not None:
                super().pop(self.last, None)
            self.last = micro_batch
            return self[micro_batch]

    right = chunk.ChunkPasses.__init__

    def init(self: Any, *args: Any) -> None:
        right(self, *args)
        self._kept = Late()

    chunk.ChunkPasses.__init__ = init


@mutation
def stage_boundary_in_float32() -> None:
    right = messages.Messages.__init__

    def init(self: Any, schedule: Any, stages: Any, shape: Any, dtype: Any) -> None:
        right(self, schedule, stages, shape, torch.float32)

    messages.Messages.__init__ = init
    made, taken = messages.Messages.made, messages.Messages.taken
    messages.Messages.made = lambda self, result, tensor: made(self, result, tensor.float())
    messages.Messages.taken = lambda self, result: taken(self, result).double()


@mutation
def layer_recomputed_at_the_wrong_place() -> None:
    """``recompute=full=1`` counts layers from the start of the rank instead of the chunk."""
    right = model.RankModel._layer
    model.RankModel._layer = lambda self, index, place, tensors: right(
        self, index, None if place is None else index - self.chunks[0].layers.start, tensors
    )
