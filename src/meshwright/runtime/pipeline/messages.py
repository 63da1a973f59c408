"""What travels between stages: activations forward, their gradients backward. Every shape is known, so nothing is agreed on first.

A *result* is what a computation makes for another chunk: (is a gradient, chunk that made it, micro-batch). The messages between two
computations of a rank are posted together; between two ranks they are received in the order of their sends, so no tags are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from meshwright.runtime import scope
from meshwright.runtime.groups import Axis
from meshwright.runtime.scope import at
from meshwright.schedule import Action, Kind, Schedule
from meshwright.spec import names

scope.transparent(__file__)

Result = tuple[bool, int, int]

SENDS = (Kind.SEND_FORWARD, Kind.SEND_BACKWARD)
GRADIENTS = (Kind.SEND_BACKWARD, Kind.RECV_BACKWARD)


class Messages:
    """One rank's mail.

    Args:
        schedule: with its sends and receives. stages: the axis of the pipeline's ranks.
        shape, dtype: of every message: the stream of one micro-batch.
    """

    def __init__(self, schedule: Schedule, stages: Axis, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._schedule, self._stages, self._shape, self._dtype = schedule, stages, shape, dtype
        self._made: dict[Result, Tensor] = {}
        self._coming: dict[Result, tuple[Tensor, Any]] = {}
        self._leaving: list[tuple[Tensor, Any]] = []

    def made(self, result: Result, tensor: Tensor) -> None:
        """Keep what a computation made for its send, or for the next chunk if this rank holds it."""
        self._made[result] = tensor

    def taken(self, result: Result) -> Tensor:
        """What a computation needs: received, or made on this rank. Waits until it is there."""
        if result not in self._coming:
            return self._made.pop(result)
        tensor, work = self._coming.pop(result)
        work.wait()
        return tensor

    def post(self, batch: Sequence[Action]) -> None:
        """Post sends and receives together."""
        self._drop_what_has_left()
        started = []
        with _together(self._stages, len(batch)) as together:
            for action in batch:
                gradient = action.kind in GRADIENTS
                with at(phase="backward_input" if gradient else "forward", module=names.PIPELINE, micro_batch=action.micro_batch,
                        chunk=action.chunk):  # fmt: skip
                    started.append(self._start(action, gradient))
        for action, (tensor, work) in zip(batch, started, strict=True):
            posted = tensor, work or together
            if action.kind in SENDS:
                self._leaving.append(posted)
            else:
                self._coming[self._source(action)] = posted

    def finish(self) -> None:
        """Wait until everything has left."""
        for _, work in self._leaving:
            work.wait()
        self._leaving.clear()
        assert not self._coming and not self._made, "the schedule leaves mail behind"

    def _start(self, action: Action, gradient: bool) -> tuple[Tensor, Any]:
        """gradient: goes from a chunk to the one before it."""
        if action.kind in SENDS:
            tensor = self._made.pop((gradient, action.chunk, action.micro_batch)).contiguous()
            return tensor, dist.isend(tensor, self._rank_of(action.chunk + (-1 if gradient else 1)), self._stages.group)
        tensor = torch.empty(self._shape, dtype=self._dtype)
        return tensor, dist.irecv(tensor, self._rank_of(self._source(action)[1]), self._stages.group)

    def _source(self, action: Action) -> Result:
        """What a receive receives."""
        gradient = action.kind in GRADIENTS
        return gradient, action.chunk + (1 if gradient else -1), action.micro_batch

    def _rank_of(self, chunk: int) -> int:
        return self._stages.ranks[self._schedule.rank_of_chunk[chunk]]

    def _drop_what_has_left(self) -> None:
        """Free the tensors of finished sends; a send that was posted earlier may still be waiting for its receive."""
        left = [work.is_completed() for _, work in self._leaving]
        for done, (_, work) in zip(left, self._leaving, strict=True):
            if done:
                work.wait()
        self._leaving = [posted for done, posted in zip(left, self._leaving, strict=True) if not done]


class _Works:
    """The works of one batch; a backend that joins operations has one for all of them."""

    def __init__(self) -> None:
        self.works: list[Any] = []

    def wait(self) -> None:
        for work in self.works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)


@contextmanager
def _together(stages: Axis, number: int) -> Iterator[_Works]:
    """Operations inside the ``with`` start as one where the backend can do that (``torch.distributed.batch_isend_irecv``'s way; there,
    all of a batch would be stamped alike)."""
    works, group = _Works(), stages.group
    assert group is not None
    device = torch.get_default_device()
    if number < 2 or not group._get_backend(device).supports_coalescing:
        yield works
        return
    with _coalescing_manager(group, device, async_ops=True) as manager:
        yield works
    works.works = list(manager.works)
