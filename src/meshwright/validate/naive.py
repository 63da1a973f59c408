"""The baseline that an estimate has to beat: one utilisation for each generation of GPU and precision.

Leaving the judged source out, as for the model: the median of the utilisation that other sources reached.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.estimate import device_peak
from meshwright.model_flops import flops_per_token
from meshwright.spec.workload import PRECISIONS
from meshwright.validate.judge import Judged
from meshwright.validate.question import Question


def ideal_s(question: Question) -> float:
    """Seconds of the step's model flops, with recomputation where the layout has it, at peak."""
    compute = PRECISIONS[question.workload.precision or "bf16"].compute
    peak = device_peak(question.model, question.cluster, compute)
    flops = flops_per_token(question.model, question.workload.seq) * (4 / 3 if question.layout.recompute == "full" else 1)
    return question.workload.batch * question.workload.seq * flops / (peak * question.layout.world_size)


def naive_errors(judged: Sequence[Judged]) -> list[float]:
    """Error of each timed figure under the baseline; where no other source has the GPU and precision, all of them serve. None without
    another source."""
    timed = [one for one in judged if one.is_time and one.question.time is not None and one.question.time.step_s]
    reached = [(_kind(one), one.source, ideal_s(one.question) / (one.question.time.step_s or 1.0)) for one in timed]  # type: ignore[union-attr]
    found = []
    for kind, source, own in reached:
        alike = [value for other, where, value in reached if other == kind and where != source]
        rest = [value for _, where, value in reached if where != source]
        if rest:
            found.append(own / float(np.median(alike or rest)) - 1)
    return found


def _kind(one: Judged) -> tuple[str, str]:
    return one.question.cluster.device.generation, PRECISIONS[one.question.workload.precision or "bf16"].compute
