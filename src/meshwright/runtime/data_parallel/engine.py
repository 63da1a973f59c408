"""What a training step asks of data parallelism, whatever the ZeRO stage.

for index in range(micro_batches):
    engine.begin_micro_batch(first=index == 0, last=index == micro_batches - 1)
    loss(...).backward()
    engine.end_micro_batch()
engine.finish_gradients()
... gradient_norm(engine.shares), optimizer.step() ...
engine.publish_weights()
"""

from __future__ import annotations

from typing import Protocol

from meshwright.runtime.data_parallel.shares import Share


class DataParallel(Protocol):
    """See the module's docstring. ``shares`` stay the same objects from step to step; only what they hold changes."""

    @property
    def shares(self) -> list[Share]: ...

    def begin_micro_batch(self, first: bool, last: bool) -> None:
        """Before a forward: whether it is the step's first or last."""

    def end_micro_batch(self) -> None:
        """After its backward."""

    def finish_gradients(self) -> None:
        """After the last micro-batch: every share's gradient is complete when this returns."""

    def publish_weights(self) -> None:
        """After the optimizer: every rank gets the weights that it computes with."""
