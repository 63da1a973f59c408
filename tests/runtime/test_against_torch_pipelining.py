"""Our executor beside torch.distributed.pipelining, where it has the schedule: the same losses and the same gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.proof_job import ProofJob
from meshwright.spec.layout import parse_layout
from meshwright.spec.workload import Training
from proof_models import LLAMA
from side_by_side import run_ours
from torch_pipeline import SCHEDULES, run_torch_pipeline

pytestmark = pytest.mark.dist

CASES = ("pp=2:gpipe mb=1", "pp=2:1f1b mb=2", "pp=4:1f1b mb=1", "pp=2:interleaved*2 mb=1", "pp=2:zb-v mb=1", "pp=4:zb-v mb=1",
         "pp=2:dualpipe-v mb=1", "pp=4:dualpipe-v mb=1")  # fmt: skip
TOLERANCE = 1e-12
"""float64, sums in another order: DESIGN's bound of a proof."""


@pytest.mark.parametrize("text", CASES)
def test_the_same_losses_and_gradients(text: str):
    layout = parse_layout(f"{text} dp=1x1")
    chunks = layout.pp * layout.virtual_stages
    model = replace(LLAMA, layers=LLAMA.layers[:1] * chunks)
    job = ProofJob(model=model, workload=Training(seq=8, batch=2 * layout.pp * layout.mb), layout=layout, clip_norm=None)
    ours = run_ranks(run_ours, layout.pp, (job, 1, True))
    theirs = run_ranks(run_torch_pipeline, layout.pp, (job, 1, True))
    np.testing.assert_allclose(*(np.sum([side.losses for side in sides], axis=0) for sides in (ours, theirs)), rtol=TOLERANCE, atol=0)
    reference = {name: gradient for side in theirs for name, gradient in side.gradients.items()}
    largest = max(np.abs(gradient).max() for gradient in reference.values())
    found = {name: piece.values for side in ours for name, piece in side.gradients.items()}
    assert found.keys() == reference.keys()
    for name, gradient in reference.items():
        scale = max(np.abs(gradient).max(), 0.01 * largest)
        rows = found[name][: len(gradient)]
        np.testing.assert_allclose(rows, gradient, rtol=0, atol=TOLERANCE * scale, err_msg=name)
    # The same messages between stages, and none of ours beside them: torch agrees on shapes in the first step and sends one integer
    # for each stage in every one.
    for mine, other in zip(ours, theirs, strict=True):
        messages = [event for event in other.events if event.kind == "p2p"]
        assert sum(event.kind == "p2p" for event in mine.events) <= len(messages)


def test_every_schedule_that_torch_has_is_compared():
    assert {parse_layout(text).schedule for text in CASES} == set(SCHEDULES)
