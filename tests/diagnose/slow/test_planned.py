"""Measured against a plan: which axis a group is of, what its collectives should take, and where its ranks are."""

from __future__ import annotations

import re

import pytest

from meshwright.diagnose.cases import evidence_of
from meshwright.diagnose.judge import judge
from meshwright.diagnose.slow.planned import Comparison, planned_against_measured
from meshwright.diagnose.slow.summary import step_json
from meshwright.estimate import priced
from meshwright.explain.rows import explain_rows
from meshwright.render.diagnose import diagnosis_text

PLAN = {"model": "llama-3.1-8b", "cluster": "h100-sxm", "gpus": 32, "seq": 8192, "batch": 64, "layout": "tp=4 sp pp=2 dp=1x4 zero=1 mb=1"}
MODEL_S = 0.4


def compared(groups: dict[str, list[int]], *spans: str) -> Comparison:
    evidence = evidence_of({"plan": PLAN, "profile": {"groups": groups, "all": [f"step 0-{MODEL_S * 1e3}", *spans]}})
    found = evidence.derived(planned_against_measured)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "ranks", "axis"),
    [
        ("3", [0, 1, 2, 3], "tp"), ("9", [4, 5, 6, 7], "tp"), ("x", [0, 4, 8, 12], "dp_shard"),
        ("TENSOR_MODEL_PARALLEL_GROUP", [0, 8, 16, 24], "tp"),
        ("mesh_dp_shard", [0, 2, 5, 7], "fsdp"), ("world", list(range(32)), "world"),
    ],
)  # fmt: skip
def test_the_axis_is_that_of_the_ranks_else_of_the_name(name: str, ranks: list[int], axis: str) -> None:
    (found,) = compared({name: ranks}, f"{name} all_reduce 10-11 1MiB").collectives
    assert found.axis == axis


def test_a_group_of_no_axis_is_not_compared() -> None:
    assert compared({"7": [0, 3, 9]}, "7 all_reduce 10-11 1MiB").collectives == ()


def test_the_prediction_is_the_ledgers_price() -> None:
    """The rows of ``explain`` for the same op, axis and payload."""
    evidence = evidence_of({"plan": PLAN, "profile": {"groups": {"1": [0, 1, 2, 3]}, "all": ["1 all_gather 1-3 64MiB"]}})
    plan = evidence.plan
    assert plan is not None and plan.cluster is not None and plan.workload is not None
    rows = explain_rows(priced(plan.model, plan.cluster, plan.workload, plan.layout, plan.stack), 0).rows
    (each_s,) = {row.each_s for row in rows if (row.op, row.axis, row.payload_bytes) == ("all_gather", "tp", 64 << 20)}
    found = evidence.derived(planned_against_measured)
    assert found is not None
    assert found.collectives[0].predicted_s == each_s and found.collectives[0].measured_s == pytest.approx(2e-3)


def test_nodes_are_counted_as_ranks_are_numbered() -> None:
    (found,) = compared({"mesh_tp": [0, 8, 16, 24]}, "mesh_tp all_gather 10-30 64MiB").collectives
    assert (found.nodes, found.planned_nodes) == (4, 1)
    assert found.as_placed_s > 5 * found.predicted_s  # eight adapters of 50 GB/s against NVLink's 450


def test_waiting_is_not_counted_against_the_plan() -> None:
    late = {
        "groups": {"1": [0, 1, 2, 3]},
        "all": ["step 0-400", "1 all_gather 10-300.3 64MiB"],
        2: ["step 0-400", "1 all_gather 300-300.3 64MiB"],
    }
    found = evidence_of({"plan": PLAN, "profile": late}).derived(planned_against_measured)
    assert found is not None
    assert found.collectives[0].measured_s == pytest.approx(3e-4, rel=1e-3)


def test_answer_has_every_collective_beside_its_prediction() -> None:
    spans = ["step 0-400", "forward 0-90", "mesh_tp all_gather 90-92 64MiB", "backward 92-400"]
    evidence = evidence_of({"plan": PLAN, "profile": {"groups": {"mesh_tp": [0, 1, 2, 3]}, "all": spans}})
    text = diagnosis_text(judge(evidence), evidence)
    assert "Measured against the plan" in text and re.search(r"^tp all_gather +67.1 MB +1 +2 ms ", text, re.MULTILINE)
    answer = step_json(evidence)
    assert answer["plan"]["collectives"][0]["axis"] == answer["step"]["collectives"][0]["axis"] == "tp"
    assert [each["phase"] for each in answer["plan"]["phases"]] == ["forward", "backward"]


def test_without_a_plan_nothing_is_compared() -> None:
    evidence = evidence_of({"profile": {"groups": {"1": [0, 1]}, "all": ["1 all_gather 1-3 64MiB"]}})
    assert evidence.derived(planned_against_measured) is None and "plan" not in step_json(evidence)
