"""The micro-batches of a step where a rank has the whole model: forward and backward, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from meshwright.runtime import saved_bytes
from meshwright.runtime.data_parallel.engine import DataParallel
from meshwright.runtime.loss_scale import LossScale, Ran
from meshwright.runtime.parallel.model import Output, RankModel
from meshwright.runtime.parallel.setting import MicroBatch
from meshwright.runtime.scope import at


class WholeModel:
    """saved_bytes: see proof_job.RankResult; measured in the first micro-batch."""

    def __init__(self, model: RankModel) -> None:
        self._model = model
        self.saved_bytes: dict[str, int] = {}

    def run(self, engine: DataParallel, batches: Sequence[MicroBatch], scale: LossScale) -> Ran:
        """Gradients are left with the engine."""
        ran = Ran()
        for index, batch in enumerate(batches):
            engine.begin_micro_batch(first=index == 0, last=index == len(batches) - 1)
            with at(micro_batch=index):
                output = self._forward(batch)
                objective = _objective(output, scale)
                with at(phase="backward_input"):
                    objective.backward()
                engine.end_micro_batch()
            ran.add(scale.reported(output.cross_entropy, output.balance), output.counts)
        return ran

    def _forward(self, batch: MicroBatch) -> Output:
        with at(phase="forward"):
            if self.saved_bytes:
                return self._model.run(batch)
            with saved_bytes.measured(self._model.parameters()) as found:
                output = self._model.run(batch)
        self.saved_bytes = found
        return output


def _objective(output: Output, scale: LossScale) -> Tensor:
    """What is differentiated on this rank."""
    objective = output.cross_entropy / scale.count
    return objective if output.balance is None else objective + scale.balance_weight * output.balance
