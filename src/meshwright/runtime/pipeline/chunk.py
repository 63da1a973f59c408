"""Forward and backward of one chunk: part by part, so that parameters are gathered and gradients reduced between them.

A part is one piece (embedding, a layer, the head), or all of them where data parallelism has nothing to do in between. Each is a
graph of its own that starts at its input; what is kept of a forward is those graphs. A backward calls them in reverse. In two halves
(zero-bubble), the linear layers leave their weights' gradients for the second (weights_later.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.runtime import saved_bytes
from meshwright.runtime.data_parallel.staged import StagedDataParallel
from meshwright.runtime.data_parallel.units import ROOT
from meshwright.runtime.loss_scale import LossScale
from meshwright.runtime.parallel.model import ChunkPlan, Passed, Piece, RankModel
from meshwright.runtime.parallel.setting import MicroBatch
from meshwright.runtime.scope import at
from meshwright.runtime.weights_later import WeightHalf, putting_off
from meshwright.spec import names


@dataclass
class _Kept:
    """A part of one micro-batch after its forward.

    Attributes:
        units: of its layers. start: its input, a leaf; None of one that begins with the embedding. passed: what each of its pieces gave.
        half: gradients of weights that its backward leaves; None where it computes them.
    """

    units: tuple[str, ...]
    start: Tensor | None
    passed: tuple[Passed, ...]
    half: WeightHalf | None


@dataclass(frozen=True)
class Given:
    """What a chunk's forward gives: the stream for the next chunk (None of the last), this rank's summand of the loss, and by layer the
    tokens that chose each expert, int64 [E]."""

    hidden: Tensor | None
    reported: Tensor
    counts: dict[int, Tensor]


class ChunkPasses:
    """One chunk of this rank, with what it keeps of the micro-batches in flight.

    Args:
        micro_batches: that pass the chunk in a step. halved: the micro-batches whose backward comes in two halves.

    Attributes:
        saved_bytes: see proof_job.RankResult; of the first micro-batch that passes the chunk.
    """

    def __init__(
        self, model: RankModel, plan: ChunkPlan, engine: StagedDataParallel, micro_batches: int, halved: frozenset[int], root: RootUse
    ) -> None:
        self._model, self._plan, self._engine, self._halved, self._root = model, plan, engine, halved, root
        pieces = model.pieces(plan, hooks=False)
        self._parts = [(piece,) for piece in pieces] if engine.acts_between_units else [tuple(pieces)]
        self._micro_batches, self._complete = micro_batches, 0
        self._kept: dict[int, list[_Kept]] = {}
        self._scale: LossScale | None = None
        self.saved_bytes: dict[str, int] = {}

    @property
    def in_flight(self) -> int:
        """Micro-batches whose backward is not complete."""
        return len(self._kept)

    def begin_step(self, scale: LossScale) -> None:
        """Before the first pass of a step."""
        self._scale, self._complete = scale, 0

    def forward(self, micro_batch: int, batch: MicroBatch, received: Tensor | None) -> Given:
        """received: the stream of the chunk before; None of the first chunk."""
        with at(phase="forward"):
            if self.saved_bytes:
                kept = self._run(micro_batch, batch, received)
            else:
                with saved_bytes.measured(self._model.parameters()) as self.saved_bytes:
                    kept = self._run(micro_batch, batch, received)
        self._kept[micro_batch] = kept
        return self._given(kept)

    def backward(self, micro_batch: int, grad: Tensor | None) -> Tensor | None:
        """The whole backward, or its input half where this micro-batch's is halved.

        Args:
            grad: of the stream that went to the next chunk; None of the last chunk.

        Returns:
            Gradient of what was received; None of the first chunk.
        """
        halved = micro_batch in self._halved
        kept = self._kept[micro_batch] if halved else self._kept.pop(micro_batch)
        with at(phase="backward_input"):
            self._gather_for_backward(kept)
            units = [unit for one in reversed(kept) for unit in reversed(one.units)]
            for one in reversed(kept):
                for _ in one.units:
                    self._engine.gather(units.pop(0))
                self._gather_ahead(units)
                grad = self._part_backward(one, grad)
                for unit in reversed(one.units):
                    self._leave(unit, halved)
            if self._root.here(self._plan):
                self._leave_root(halved)
        self._complete += not halved
        return grad

    def backward_weight(self, micro_batch: int) -> None:
        """The weight half."""
        kept = self._kept.pop(micro_batch)
        with at(phase="backward_weight"):
            for one in reversed(kept):
                assert one.half is not None
                one.half.run()
                for unit in reversed(one.units):
                    self._leave(unit, halved=False)
            if self._root.here(self._plan):
                self._leave_root(halved=False)
        self._complete += 1

    def _run(self, micro_batch: int, batch: MicroBatch, x: Tensor | None) -> list[_Kept]:
        if self._root.here(self._plan):
            self._gather(ROOT)
        kept = []
        for part in self._parts:
            kept.append(self._part_forward(part, x, batch, WeightHalf() if micro_batch in self._halved else None))
            x = kept[-1].passed[-1].hidden
            for unit in kept[-1].units:
                self._engine.free(unit)
        if self._root.here(self._plan):
            self._engine.free(ROOT)
        return kept

    def _part_forward(self, part: Sequence[Piece], x: Tensor | None, batch: MicroBatch, half: WeightHalf | None) -> _Kept:
        units = tuple(names.layer(piece.layer) for piece in part if piece.layer is not None)
        for unit in units:
            self._gather(unit)
        start = x = None if x is None else x.detach().requires_grad_()
        passed = []
        with putting_off(half):
            for piece in part:
                passed.append(piece.run(x, batch))
                x = passed[-1].hidden
        return _Kept(units, start, tuple(passed), half)

    def _part_backward(self, one: _Kept, grad: Tensor | None) -> Tensor | None:
        """Gradient of the part's input; its graph is freed."""
        assert self._scale is not None
        roots, grads = [], []
        if one.passed[-1].hidden is not None and grad is not None:
            roots, grads = [one.passed[-1].hidden], [grad]
        for passed in one.passed:
            if passed.loss is not None:
                roots.append(passed.loss)
                grads.append(self._scale.gradient_of(passed.loss))
            if passed.balance is not None:
                roots.append(passed.balance)
                grads.append(torch.full_like(passed.balance, self._scale.balance_weight))
        torch.autograd.backward(roots, grads)
        one.passed = ()
        start, one.start = one.start, None
        return None if start is None else start.grad

    def _given(self, kept: list[_Kept]) -> Given:
        assert self._scale is not None
        pieces, passed = [piece for part in self._parts for piece in part], [each for one in kept for each in one.passed]
        losses = [each.loss for each in passed if each.loss is not None]
        balances = [each.balance for each in passed if each.balance is not None]
        reported = self._scale.reported(
            torch.stack(losses).sum() if losses else None, torch.stack(balances).sum() if balances else None
        )  # fmt: skip
        counts = {
            piece.layer: each.counts
            for piece, each in zip(pieces, passed, strict=True)
            if piece.layer is not None and each.counts is not None
        }
        hidden = None if self._plan.last else passed[-1].hidden
        return Given(None if hidden is None else hidden.detach(), reported, counts)

    def _gather(self, unit: str) -> None:
        self._engine.gather(unit)
        saved_bytes.leave_out(self._model.parameters())

    def _gather_for_backward(self, kept: list[_Kept]) -> None:
        """The root where something of it is needed again (an embedding's backward does not need its table)."""
        if self._root.here(self._plan) and (self._plan.last or self._model.setting.model.embedding_norm):
            self._engine.gather(ROOT)

    def _gather_ahead(self, units: list[str]) -> None:
        """The next unit's parameters travel while this one computes."""
        if units:
            self._engine.gather(units[0], wait=False)

    def _leave(self, unit: str, halved: bool) -> None:
        if halved:
            self._engine.free(unit)
        else:
            self._engine.reduce(unit, last=self._complete + 1 == self._micro_batches)

    def _leave_root(self, halved: bool) -> None:
        if halved:
            self._engine.free(ROOT)
        else:
            self._engine.reduce(ROOT, last=self._root.completed())


class RootUse:
    """The passes over the ends of the model, which share the root unit: a rank may have both."""

    def __init__(self, passes: int) -> None:
        self._passes, self._done = passes, 0

    def begin_step(self) -> None:
        self._done = 0

    def here(self, plan: ChunkPlan) -> bool:
        """Whether the chunk needs the root."""
        return plan.first or plan.last

    def completed(self) -> bool:
        """Count one backward; whether it was the last of the step."""
        self._done += 1
        return self._done == self._passes
