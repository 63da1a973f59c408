"""Time against memory names layouts that some framework runs, as the list of plans does."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.search.runs_on import runnable
from meshwright.spec.load_model import resolve_model


@pytest.mark.parametrize(("constraints", "every"), [((), True), (("schedule=zb-h1", "pp>1"), False)])
def test_points_can_be_run_unless_the_schedule_was_asked_for(constraints: tuple[str, ...], every: bool) -> None:
    """There are better ones that no framework has, such as striped context parallelism in a pipeline, or zb-v with ZeRO-1."""
    answer = mw.plan("llama-2-13b", cluster="a100-sxm-80g", gpus=16, seq=4096, batch=64, constraints=("tp<=2", *constraints))
    model = resolve_model("llama-2-13b")
    assert all(runnable(point.layout, model) for point in answer.front) is every
    assert answer.front[-1].step_s == min(point.step_s for point in answer.front)
    assert answer.front[-1].step_s == answer.plans[0].step_s
