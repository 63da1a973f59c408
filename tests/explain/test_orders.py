"""Orders of the axes by their price: the usual ladder comes out where it holds, and does not where it does not hold."""

import json
from dataclasses import replace

import pytest

from meshwright.estimate import estimate
from meshwright.explain.orders import OrderReport, explain_orders
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.workload import Training

H100 = resolve_cluster("h100-sxm")
LLAMA_70B = resolve_model("llama-3.1-70b")
DEEPSEEK = resolve_model("deepseek-v3")
STAGES = "stages=" + ",".join(["4"] * 13 + ["3"] * 3)
"""61 layers on 16 stages."""


def orders(layout: str, gpus: int, model=LLAMA_70B, cluster: Cluster = H100, seq: int = 8192, batch: int = 512) -> OrderReport:
    return explain_orders(model, cluster, Training(seq=seq, batch=batch), parse_layout(layout, gpus))


def step_s(found: OrderReport, order: str) -> float:
    return next(row.step_s for row in found.rows if order in (row.order, *row.same))


def thin_spine(oversubscription: float) -> Cluster:
    return replace(H100, tiers=(*H100.tiers[:-1], replace(H100.tiers[-1], oversubscription=oversubscription)))


def test_tensor_groups_go_inside_the_node_then_context_the_rest_across():
    """The bandwidth ladder: 70B on 128 H100, groups of 2, 2, 4 and 8 ranks, so that any two or three axes could fill a node."""
    found = orders("tp=2 sp cp=2 pp=4 zero=1 mb=1", 128)
    assert found.rows[0].tiers == {"tp": "nvlink", "cp": "nvlink", "dp_shard": "leaf", "pp": "leaf"}
    assert [wish.axis for wish in found.ladder][:2] == ["tp", "cp"]
    assert found.given is found.rows[0]  # the default order is among the fastest
    assert step_s(found, "ep-dp-pp-cp-tp") > 1.3 * found.rows[0].step_s


def test_tensor_groups_inside_the_node_are_worth_more_than_anything_else():
    found = orders("tp=8 sp pp=4 dp=1x4 zero=1 mb=1", 128)
    losses = {wish.axis: wish.outermost_s - wish.innermost_s for wish in found.ladder}
    assert next(iter(losses)) == "tp" and losses["tp"] > 100 * max(losses["dp"], losses["pp"])
    assert found.rows[0].order.startswith("tp")


def test_data_outermost_is_no_rule_where_the_spine_is_thin():
    """405B, pp=14, dp=128: with dp inside pp a ring of data ranks crosses the spine four times and not 128 times."""
    model = resolve_model("llama-3.1-405b")
    found = [orders("tp=8 sp pp=14 dp=1x128 zero=1 mb=1", 14336, model, thin_spine(x), batch=2048) for x in (1.0, 16.0)]
    for one, most in zip(found, (1.01, 2.0), strict=True):
        assert one.rows[0].order == "tp-cp-ep-dp-pp"
        assert 1 < step_s(one, "tp-cp-ep-pp-dp") / step_s(one, "tp-cp-ep-dp-pp") < most
    assert step_s(found[1], "tp-cp-ep-pp-dp") / step_s(found[1], "tp-cp-ep-dp-pp") > 1.3


def test_sharded_parameters_want_to_be_inside_the_pipeline_too():
    """FSDP gathers in every micro-batch: 8B, tp=2 pp=2, sixteen data ranks. With dp next to tp four of them share a node."""
    found = orders("tp=2 sp pp=2 zero=3 mb=1", 64, resolve_model("llama-3.1-8b"))
    assert found.rows[0].order == "tp-cp-ep-dp-pp"
    assert step_s(found, "tp-cp-ep-pp-dp") > 1.03 * found.rows[0].step_s


def test_in_one_nvlink_domain_the_order_makes_no_difference():
    """64 ranks of an NVL72 rack: every group is in the innermost tier, whatever the order, and no rule is left."""
    found = orders("tp=4 sp pp=4 dp=1x4 zero=1 mb=1", 64, cluster=resolve_cluster("gb200-nvl72"))
    assert {tier for row in found.rows for tier in row.tiers.values()} == {"nvlink"}
    assert len({row.step_s for row in found.rows}) == 1
    assert all(wish.innermost_s == wish.outermost_s for wish in found.ladder)


def test_experts_across_nodes_without_tensor_groups_beat_tensor_groups_inside():
    """DeepSeek-V3 on 2,048 H800 with ep=64, pp=16 (the published layout): tp=1, although its experts' traffic crosses nodes, is faster
    than tp=8 inside the node, whose collectives are exposed; and then it is ep that wants the innermost place."""
    cluster = resolve_cluster("h800-sxm")
    found = {
        layout: orders(f"{layout} pp=16 {STAGES} ep=64 etp=1 zero=1 mb=1", 2048, DEEPSEEK, cluster, seq=4096, batch=15360)
        for layout in ("tp=1", "tp=8 sp")
    }
    best = {layout: report.rows[0] for layout, report in found.items()}
    assert best["tp=1"].tiers["ep"] == "leaf" and best["tp=8 sp"].tiers["tp"] == "nvlink"
    assert best["tp=1"].step_s < 0.9 * best["tp=8 sp"].step_s
    assert found["tp=1"].ladder[0].axis == "ep" and found["tp=8 sp"].ladder[0].axis == "tp"


def test_rows_are_estimates_and_cover_every_order():
    layout = parse_layout("tp=2 sp cp=2 pp=2 zero=1 mb=1", 32)
    found = explain_orders(LLAMA_70B, H100, Training(seq=8192, batch=64), layout)
    every = [order for row in found.rows for order in (row.order, *row.same)]
    assert len(every) == len(set(every)) == 120 and found.refused == 0
    assert len(found.rows) == 24  # four axes in use; ep is not
    for row in found.rows[:3]:
        alone = estimate(LLAMA_70B, H100, Training(seq=8192, batch=64), replace(layout, order=row.order))
        assert (row.step_s, row.parts) == (alone.step_s, alone.parts)
        for same in row.same:
            assert estimate(LLAMA_70B, H100, Training(seq=8192, batch=64), replace(layout, order=same)).step_s == row.step_s


def test_orders_that_leave_no_regular_expert_groups_are_refused_and_counted():
    """With dp=12 innermost and pp next, ep=8 would take eight neighbours of twelve and then four on both sides of a gap."""
    layout = parse_layout("tp=4 sp pp=2 ep=8 etp=1 dp=1x12 zero=1 mb=1", 96)
    found = explain_orders(resolve_model("qwen3-30b-a3b"), H100, Training(seq=8192, batch=96), layout)
    every = [order for row in found.rows for order in (row.order, *row.same)]
    assert found.refused == 10 and len(every) == 110
    assert "cp-ep-dp-pp-tp" not in every


JOB = ("llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "128", "--layout", "tp=2 sp cp=2 pp=4 zero=1 mb=1 order=tp-cp-ep-pp-dp")


def test_the_command_marks_the_layouts_own_order(meshwright):
    result = meshwright("ranks", *JOB, "--seq", "8192", "--batch", "512", "--orders")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "tp-cp-ep-pp-dp *" in result.stdout and "24 ways" in result.stdout
    answer = json.loads(meshwright("ranks", *JOB, "--seq", "8192", "--batch", "512", "--orders", "--json").stdout)
    assert (answer["best"], answer["given"]) == ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
    assert answer["ladder"][0]["axis"] == "tp"
    steps = [row["step_s"] for row in answer["orders"]]
    assert steps == sorted(steps)


@pytest.mark.parametrize("layout", ["tp=8", "tp=1 dp=1x1"])
def test_one_axis_or_none_has_one_order(layout):
    found = orders(f"{layout} mb=1", 8 if "8" in layout else 1, resolve_model("llama-3.1-8b"), batch=8)
    assert len(found.rows) == 1 and len(found.rows[0].same) == 119
