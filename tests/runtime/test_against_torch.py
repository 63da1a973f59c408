"""Our runtime beside torch's own FSDP2 and DTensor where they cover the case: the same numbers, and no more bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.proof_job import ProofJob, RankResult, assemble
from meshwright.spec.layout import parse_layout
from meshwright.spec.workload import Training
from proof_models import LLAMA
from side_by_side import Side, run_ours, run_torch

pytestmark = pytest.mark.dist

MODEL = replace(LLAMA, vocab_size=52)
"""DTensor cuts no vocabulary that tp does not divide into equal parts."""

LAYOUTS = ("tp=2 dp=1x1 mb=2", "tp=2 sp dp=1x1 mb=2", "dp=1x2 zero=3 mb=1", "tp=2 dp=1x2 zero=3 mb=1", "tp=2 sp dp=1x4 zero=3 mb=1")
TOLERANCE = 1e-12
"""float64, sums in another order: DESIGN's bound of a proof."""


def _job(text: str) -> ProofJob:
    layout = parse_layout(text)
    return ProofJob(model=MODEL, workload=Training(seq=16, batch=2 * layout.dp * layout.mb), layout=layout, steps=3, clip_norm=None)


@pytest.mark.parametrize("text", LAYOUTS)
def test_the_same_numbers_and_no_more_bytes(text: str):
    job = _job(text)
    world = job.layout.world_size
    ours: list[Side] = run_ranks(run_ours, world, (job, 1, True))
    theirs: list[Side] = run_ranks(run_torch, world, (job, 1, True))
    _assert_same_numbers(job, ours, theirs)
    for mine, other in zip(ours, theirs, strict=True):
        # With sp a column layer saves its input sharded and gathers it again for its weight's gradient, as Megatron does (arXiv 2205.05198,
        # section 4.2.2); DTensor keeps the gathered one. That is the one thing that costs us more bytes, and saves the memory.
        again = _bytes([event for event in mine.events if event.op == "all_gather" and event.phase == "backward_weight"])
        assert again == 0 or job.layout.sp
        assert _bytes(mine.events) - again <= _bytes(other.events)
        if job.layout.tp > 1:  # inside of DTensor's operators, too
            assert [event.reduce_op for event in other.events].count("max") == 2, "the recorder sees loss_parallel's own reductions"
        if not job.layout.sp:
            assert len(mine.events) <= len(other.events)


def _bytes(events) -> int:
    return sum(event.payload_bytes for event in events)


def _assert_same_numbers(job: ProofJob, ours: list[Side], theirs: list[Side]) -> None:
    """Losses of all steps, and every gradient of the last one: its weights have been through two optimizer steps."""
    total = np.sum([side.losses for side in ours], axis=0)
    other = np.sum([side.losses for side in theirs], axis=0) / job.layout.tp
    np.testing.assert_allclose(total, other, rtol=TOLERANCE, atol=0)
    results = [
        RankResult(rank=rank, losses=(0.0,), gradient_norms=(0.0,), gradients=(side.gradients,), weights={}, header=None)
        for rank, side in enumerate(ours)
    ]
    whole = assemble(replace(job, steps=1), results).gradients[0]
    reference = theirs[0].gradients
    assert set(whole) == set(reference)
    largest = max(np.abs(value).max() for value in reference.values())
    for name, value in reference.items():
        np.testing.assert_allclose(whole[name], value, rtol=0, atol=TOLERANCE * max(np.abs(value).max(), 0.01 * largest), err_msg=name)
