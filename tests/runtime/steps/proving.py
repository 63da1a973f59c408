"""Runs one layout of one family against one device, and says how far apart they are (DESIGN section 6's errors)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.proof_job import ProofJob, RankResult, Whole, assemble, run_proof_rank, run_reference
from meshwright.spec.layout import parse_layout
from meshwright.spec.workload import Training
from runtime.steps.small_models import MODELS

BOUND = 1e-12
"""float64: sums in another order differ by 1e-15 or so; a missing or doubled summand by more than 1e-6."""


def job_of(family: str, text: str, micro_batches: int = 2, **changes: Any) -> ProofJob:
    """Three steps, two micro-batches per rank."""
    layout = parse_layout(text)
    seq = 24 if layout.cp == 3 else 16
    batch = layout.dp * layout.mb * micro_batches
    return ProofJob(model=MODELS[family], workload=Training(seq=seq, batch=batch, precision="float64"), layout=layout, **changes)


@lru_cache(maxsize=64)
def _reference(job: ProofJob) -> Whole:
    return run_reference(job)


def reference_of(job: ProofJob) -> Whole:
    return _reference(job)


def prove(job: ProofJob) -> tuple[list[RankResult], Whole, Whole]:
    """The ranks' results, put together, and the reference's."""
    reference = reference_of(job)
    results = run_ranks(run_proof_rank, job.layout.world_size, (job, reference.seed), timeout_s=60)
    return results, assemble(job, results), reference


def check_numbers(actual: Whole, expected: Whole) -> None:
    """Losses, gradient norms, every gradient of every step, every weight after the last."""
    for which in ("losses", "gradient_norms"):
        for mine, theirs in zip(getattr(actual, which), getattr(expected, which), strict=True):
            assert abs(mine - theirs) <= BOUND * abs(theirs), (which, mine, theirs)
    bad = {}
    for step, (mine, theirs) in enumerate(zip(actual.gradients, expected.gradients, strict=True)):
        assert mine.keys() == theirs.keys()
        largest = max(float(np.abs(gradient).max()) for gradient in theirs.values())
        for name, gradient in theirs.items():
            error = float(np.abs(mine[name] - gradient).max()) / max(float(np.abs(gradient).max()), 0.01 * largest)
            if error > BOUND:
                bad[f"gradient {step} {name}"] = error
    assert actual.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        error = float(np.abs(actual.weights[name] - weight).max()) / max(float(np.abs(weight).max()), 0.01)
        if error > BOUND:
            bad[f"weight {name}"] = error
    assert not bad, bad
    assert actual.drift <= BOUND
