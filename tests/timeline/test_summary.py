"""The JSON keys of a timeline and the sentence about the culprit."""

from __future__ import annotations

import json

import pytest

from meshwright.schedule import build
from meshwright.timeline import Slow, simulate, slow_down, uniform_costs
from meshwright.timeline.summary import culprit_text, summary


def test_the_summary_is_json_and_adds_up() -> None:
    schedule = build("1f1b", 4, 1, 8)
    found = json.loads(json.dumps(summary(simulate(schedule, uniform_costs(schedule, transfer_s=0.1)))))
    assert list(found) == ["step_s", "bubble_fraction", "ranks", "critical_path", "culprit"]
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2, 3]
    for one in found["ranks"]:
        assert one["busy_s"] + sum(one["waiting_s"].values()) == pytest.approx(found["step_s"])
    assert found["critical_path"][-1]["end_s"] == found["step_s"]
    assert found["culprit"] is None


def test_the_text_names_the_rank_that_is_waited_for() -> None:
    schedule = build("1f1b", 8, 1, 32)
    healthy = simulate(schedule, uniform_costs(schedule))
    slow = simulate(schedule, slow_down(schedule, healthy.costs, Slow(1.3, stage=3)))
    text = culprit_text(slow, healthy)
    assert text.startswith("The others wait for rank 3: it waits least,")
    assert text.endswith("The step takes 1.215 times as long as without it.")
    assert culprit_text(healthy).startswith("No rank stands out")
