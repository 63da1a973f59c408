"""Two real pipelines with a known cause: what a slow worker, or a heavy last stage, costs (arXiv 2505.05713).

The published analysis compares each job with one in which every operation takes its mean over all workers. Its slowdowns are
1.973 (job AR: one slow worker on stage 0) and 1.179 (job ST: the last stage is heavier than the others).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshwright.schedule import build
from meshwright.timeline import Slow, Timeline, culprit, simulate, slow_down, uniform_costs
from shared_data import shared

MEANS = json.loads((Path(__file__).parent / "data" / "straggler.json").read_text(encoding="utf-8"))
# Two sources of difference, neither of which the means contain: steps vary around their mean (the slowdown of single steps
# of job ST spans 1.17 to 1.27), and ranks are synchronised at the end of a step in ways that one number for the end leaves out.
TOLERANCE = 0.03


def pipeline(trial: str, forward_s: np.ndarray, backward_s: np.ndarray, *slow: Slow) -> Timeline:
    """1F1B with these durations per stage (the traces' order), and the given slowness."""
    schedule = build("1f1b", len(forward_s), 1, MEANS[trial]["micro_batches"])
    costs = uniform_costs(schedule, forward_s, backward_s / 2, backward_s / 2)
    for one in slow:
        costs = slow_down(schedule, costs, one)
    return simulate(schedule, costs)


def injected(trial: str) -> tuple[int, np.ndarray, np.ndarray, float, float]:
    """(stage, healthy forward, healthy backward, factor of the forward, of the backward): healthy workers' means per stage."""
    forward, backward = (np.array(MEANS[trial][key]) for key in ("forward_s", "backward_s"))
    stage = {"AR": 0, "ST": 3}[trial]
    healthy_f, healthy_b = forward[1:].mean(axis=0), backward[1:].mean(axis=0)
    slow_f, slow_b = forward[0, stage], backward[0, stage]
    if trial == "ST":  # the cause is the stage itself: healthy is what the other stages are
        healthy_f[stage], healthy_b[stage] = healthy_f[:stage].mean(), healthy_b[:stage].mean()
    return stage, healthy_f, healthy_b, slow_f / healthy_f[stage], slow_b / healthy_b[stage]


@pytest.mark.parametrize("trial", ["AR", "ST"])
def test_injected_cause_costs_what_was_measured(trial: str) -> None:
    measured = json.loads(shared(f"data/traces/bytedance-straggler/result-{trial}.json").read_text(encoding="utf-8"))["blocking_slowdown"]
    stage, forward, backward, slow_forward, slow_backward = injected(trial)
    slow = pipeline(trial, forward, backward, Slow(slow_forward, stage, op="forward"), Slow(slow_backward, stage, op="backward"))
    p = len(forward)
    means = (np.full(p, np.mean(MEANS[trial][key])) for key in ("forward_s", "backward_s"))
    ideal, end = pipeline(trial, *means), MEANS[trial]["end_s"]
    assert (slow.span_s + end) / (ideal.span_s + end) == pytest.approx(measured, rel=TOLERANCE)
    assert culprit(slow) == stage


@pytest.mark.parametrize("trial", ["AR", "ST"])
def test_healthy_pipeline_has_no_culprit_and_no_loss(trial: str) -> None:
    _, forward, backward, _, _ = injected(trial)
    p = len(forward)
    healthy = pipeline(trial, np.full(p, forward.mean()), np.full(p, backward.mean()))
    m = MEANS[trial]["micro_batches"]
    assert healthy.span_s == pytest.approx((m + p - 1) * (forward.mean() + backward.mean()))
    assert culprit(healthy) is None


def test_the_kept_means_are_those_of_the_traces() -> None:
    pytest.importorskip("pyarrow", reason="the traces are parquet files")
    from timeline.straggler_means import means

    folder = shared("data/traces/bytedance-straggler/trace-AR.parquet").parent
    assert {trial: means(folder, trial) for trial in MEANS} == MEANS
