"""The verbs as functions: ``meshwright.plan(...)`` and its like, returning plain dataclasses.

Inputs are what the command line takes, a name or a path, or the objects themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import InputError, Mistake
from meshwright.job import Asked, Job, resolve

if TYPE_CHECKING:
    from meshwright.search.plan import PlanAnswer, Progress
    from meshwright.spec.cluster import Cluster
    from meshwright.spec.model import Model


def plan(
    model: str | Path | Model, *, cluster: str | Path | Cluster | None = None, gpus: int | None = None, seq: int | None = None,
    batch: int | None = None, precision: str | None = None, stack: str | None = None, memory_fraction: float | None = None,
    constraints: Iterable[str] = (), top: int = 5, tokens: int | None = None, vocab_pad: int = 1,
    progress: Progress | None = None, source: str = "plan()",
) -> tuple[PlanAnswer, Job]:  # fmt: skip
    """Search all legal layouts; the answer, and the inputs as they were read.

    Without ``seq`` it is the model's longest up to 8,192 tokens; without ``batch`` about four million tokens a step.

    Raises:
        InputError: everything that is wrong with the inputs, together.
    """
    from meshwright.search.plan import default_workload
    from meshwright.search.plan import plan as search

    asked = Asked(
        subject=model, cluster=cluster, gpus=gpus, seq=seq, batch=batch, precision=precision, stack=stack,
        memory_fraction=memory_fraction, source=source,
    )  # fmt: skip
    job = resolve(asked, needs=("cluster",))
    assert job.cluster is not None
    if job.gpus is None:
        raise InputError([Mistake(source, f"{asked.dashes}gpus", None, "a whole number from 1 to 10^8", problem="is missing")])
    workload, assumed = default_workload(job.model, job.gpus, seq, batch, precision)
    answer = search(
        job.model, job.cluster, workload, job.gpus, job.stack.name if job.stated_stack else None, job.memory_fraction, constraints,
        top, tokens, vocab_pad, progress,
    )  # fmt: skip
    answer.assumed[:0] = [*assumed, *job.assumed]
    return answer, replace(job, workload=workload)
