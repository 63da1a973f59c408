"""Carries out one rank's list of a pipeline schedule: computes, sends and receives in its order, whatever schedule it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import Tensor

from meshwright.runtime import recorder
from meshwright.runtime.data_parallel.staged import StagedDataParallel
from meshwright.runtime.groups import Axis
from meshwright.runtime.loss_scale import LossScale, Ran
from meshwright.runtime.parallel.model import ChunkPlan, RankModel
from meshwright.runtime.parallel.setting import MicroBatch
from meshwright.runtime.pipeline.chunk import ChunkPasses, RootUse
from meshwright.runtime.pipeline.messages import Messages
from meshwright.runtime.scope import at
from meshwright.schedule import Action, Kind, Schedule, with_communication
from meshwright.schedule.actions import COMPUTE_KINDS
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model

SPANS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward_input",
    Kind.BACKWARD_WEIGHT: "backward_weight",
}
"""What recordings call the computations."""


def chunk_plans(model: Model, layout: Layout, num_stages: int) -> list[ChunkPlan]:
    """The pieces that the model is cut into, in model order."""
    sizes = layout.stages or (model.num_layers // num_stages,) * num_stages
    ends = [sum(sizes[: index + 1]) for index in range(num_stages)]
    return [
        ChunkPlan(layers=range(end - size, end), first=index == 0, last=index == num_stages - 1)
        for index, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]


def held_stages(schedule: Schedule, place: int) -> list[int]:
    """The pieces that a pipeline rank holds, in model order."""
    return sorted({schedule.stage(chunk) for chunk, rank in enumerate(schedule.rank_of_chunk) if rank == place})


class Stages:
    """This rank's share of a pipelined step.

    Args:
        schedule: with or without its messages. stages: the axis of the pipeline's ranks.
        plans: of all stages of the model. shape, dtype: of the stream of one micro-batch on this rank.

    Attributes:
        saved_bytes: see proof_job.RankResult; of each block in the first micro-batch that passes it.
        most_in_flight: chunk passes whose activations were held at once.
    """

    def __init__(
        self, model: RankModel, schedule: Schedule, stages: Axis, plans: Sequence[ChunkPlan], shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        computations_only = all(action.kind in COMPUTE_KINDS for actions in schedule for action in actions)
        self._schedule = with_communication(schedule) if computations_only else schedule
        self._model, self._stages, self._plans = model, stages, plans
        self._actions = self._schedule.actions[stages.place]
        self._messages = Messages(self._schedule, stages, shape, dtype)
        self._chunks: dict[int, ChunkPasses] = {}
        self._root = RootUse(0)
        self.most_in_flight = 0

    @property
    def saved_bytes(self) -> dict[str, int]:
        return {block: size for chunk in self._chunks.values() for block, size in chunk.saved_bytes.items()}

    def run(self, engine: StagedDataParallel, batches: Sequence[MicroBatch], scale: LossScale) -> Ran:
        """All actions of one step. Gradients are left with the engine."""
        if not self._chunks:
            self._make_chunks(engine)
        engine.begin_step()
        self._root.begin_step()
        for chunk in self._chunks.values():
            chunk.begin_step(scale)
        ran, step = Ran(), 0
        for computes, actions in groupby(self._actions, lambda action: action.kind in COMPUTE_KINDS):
            batch = list(actions)
            for together in [[action] for action in batch] if computes else [batch]:
                with self._named(step, together):
                    if computes:
                        self._compute(together[0], batches, ran)
                    else:
                        self._messages.post(together)
                step += len(together)
        self._messages.finish()
        return ran

    @contextmanager
    def _named(self, step: int, actions: Sequence[Action]) -> Iterator[None]:
        """An error inside tells where in the list it happened."""
        try:
            yield
        except Exception as error:
            error.add_note(f"pipeline rank {self._stages.place}, step {step} of its list, {' '.join(map(str, actions))}")
            raise

    def _make_chunks(self, engine: StagedDataParallel) -> None:
        schedule, place = self._schedule, self._stages.place
        mine = [chunk for chunk, rank in enumerate(schedule.rank_of_chunk) if rank == place]
        ends = [chunk for chunk in mine if schedule.is_first(chunk) or schedule.is_last(chunk)]
        self._root = RootUse(sum(len(schedule.micro_batches_of(chunk)) for chunk in ends))
        for chunk in mine:
            halved = frozenset(a.micro_batch for a in self._actions if a.kind == Kind.BACKWARD_INPUT and a.chunk == chunk)
            plan, passes = self._plans[schedule.stage(chunk)], len(schedule.micro_batches_of(chunk))
            self._chunks[chunk] = ChunkPasses(self._model, plan, engine, passes, halved, self._root)

    def _compute(self, action: Action, batches: Sequence[MicroBatch], ran: Ran) -> None:
        """Waits for what the computation needs, then carries it out; only the latter is its span in a recording."""
        chunk, k = action.chunk, action.micro_batch
        with at(micro_batch=k, chunk=chunk):
            needed = self._needed(action)
            with recorder.computing(SPANS[action.kind]):
                if action.kind == Kind.FORWARD:
                    self._forward(action, batches[k], needed, ran)
                elif action.kind == Kind.BACKWARD_WEIGHT:
                    self._chunks[chunk].backward_weight(k)
                else:
                    grad = self._chunks[chunk].backward(k, needed)
                    if grad is not None:
                        self._messages.made((True, chunk, k), grad)

    def _needed(self, action: Action) -> Tensor | None:
        """The activation or gradient of another chunk."""
        chunk, k = action.chunk, action.micro_batch
        if action.kind == Kind.FORWARD:
            return None if self._schedule.is_first(chunk) else self._messages.taken((False, chunk - 1, k))
        if action.kind == Kind.BACKWARD_WEIGHT or self._schedule.is_last(chunk):
            return None
        return self._messages.taken((True, chunk + 1, k))

    def _forward(self, action: Action, batch: MicroBatch, received: Tensor | None, ran: Ran) -> None:
        given = self._chunks[action.chunk].forward(action.micro_batch, batch, received)
        ran.add(given.reported, given.counts)
        if given.hidden is not None:
            self._messages.made((False, action.chunk, action.micro_batch), given.hidden)
        self.most_in_flight = max(self.most_in_flight, sum(passes.in_flight for passes in self._chunks.values()))
