"""A whole step: one number everywhere, what follows the pipeline, and what a pair of DualPipe hides."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from ledger.columns import WORKLOAD, random_column
from ledger.models import DEEPSEEK_V3, SMALL
from meshwright.chunk_time import chunk_times
from meshwright.estimate import estimate, priced
from meshwright.memory import units_of
from meshwright.priced import Priced
from meshwright.spec.layout import parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model import Model
from meshwright.spec.stack import STACKS, Stack
from meshwright.spec.workload import Training
from meshwright.step_time import busy_parts, step_parts
from meshwright.timeline.slow import Slow
from meshwright.timeline.step import simulate_step
from properties.test_step_time import faster
from sample_inputs import H100_CLUSTER, LLAMA_70B

ROUNDING = 1e-12
"""Relative: sums of the same float64 terms in another order."""

JOB = ["llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "64", "--seq", "4096", "--batch", "64"]
LAYOUTS = [
    "tp=8 sp dp=1x8 zero=3 mb=1", "tp=8 sp pp=4 dp=1x2 zero=1 mb=1", "tp=8 sp pp=4:interleaved*5 dp=1x2 zero=1 mb=1",
    "tp=8 sp pp=4:zb-v dp=1x2 zero=2 mb=1", "tp=4 sp pp=8:zb-h2 dp=1x2 zero=1 mb=1", "tp=8 sp pp=4:dualpipe dp=1x2 zero=3 mb=1",
    "tp=8 sp pp=4:zb-2p dp=1x2 zero=1 mb=1", "tp=8 sp pp=4 stages=19,21,21,19 dp=1x2 zero=1 mb=1 recompute=full",
]  # fmt: skip


def numbers(text: str, batch: int = 64, stack: str = "megatron") -> Priced:
    return priced(LLAMA_70B, H100_CLUSTER, Training(seq=4096, batch=batch), parse_layout(text, 64), STACKS[stack])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_estimate_and_timeline_print_one_number(meshwright, layout: str) -> None:  # type: ignore[no-untyped-def]
    answers = [json.loads(meshwright(command, *JOB, "--layout", layout, "--json").stdout) for command in ("estimate", "timeline")]
    assert answers[0]["step_s"] == answers[1]["step_s"]
    assert answers[0]["bubble_fraction"] == answers[1]["bubble_fraction"]
    assert sum(answers[0]["parts"].values()) == pytest.approx(answers[0]["step_s"], rel=ROUNDING)
    for rank in answers[1]["ranks"]:
        waited = sum(rank["waiting_s"].values())
        assert rank["busy_s"] + waited <= answers[1]["step_s"] * (1 + ROUNDING)
    path = answers[1]["critical_path"]
    assert path[0]["start_s"] == 0.0 and path[-1]["end_s"] == pytest.approx(answers[1]["step_s"], rel=ROUNDING)
    for earlier, later in pairwise(path):
        assert later["start_s"] == pytest.approx(earlier["end_s"], rel=ROUNDING)


def test_plans_finalists_have_that_number_too(meshwright) -> None:  # type: ignore[no-untyped-def]
    """Both numbers of every plan, and of the point of the front that is fastest; the order is the simulator's."""
    job = ["llama-3.1-8b", "--cluster", "h100-sxm", "--gpus", "8", "--seq", "8192", "--batch", "32"]
    answer = json.loads(meshwright("plan", *job, "--constraint", "pp>1", "--constraint", "cp=1", "--json").stdout)
    steps = [plan["step_s"] for plan in answer["plans"]]
    assert steps == sorted(steps) and answer["pareto"][-1]["step_s"] == steps[0]
    for plan in answer["plans"][:2]:
        for command in ("estimate", "timeline"):
            assert json.loads(meshwright(command, *job, "--layout", plan["layout"], "--json").stdout)["step_s"] == plan["step_s"]
        found = mw.estimate(job[0], cluster="h100-sxm", gpus=8, seq=8192, batch=32, layout=plan["layout"])
        closed = priced_step(found.layout)
        assert plan["closed_form_step_s"] == closed
    gap = answer["largest_gap"]
    assert gap["relative"] == gap["closed_form_step_s"] / gap["step_s"] - 1
    assert abs(gap["relative"]) >= max(abs(plan["closed_form_step_s"] / plan["step_s"] - 1) for plan in answer["plans"])


def priced_step(layout) -> float:  # type: ignore[no-untyped-def]
    from meshwright.spec.load_model import resolve_model

    model = resolve_model("llama-3.1-8b")
    return estimate(model, resolve_cluster("h100-sxm"), Training(seq=8192, batch=32), layout, closed_form=True).step_s


@pytest.mark.parametrize(
    "layout", ["tp=8 sp dp=8 mb=1", "tp=8 sp dp=1x8 zero=3 mb=1", "dp=1x64 zero=2 mb=1", "tp=2 pp=8 dp=1x4 zero=3 mb=1"]
)
def test_formula_and_simulator_agree_where_layers_are_equal(layout: str) -> None:
    plan = numbers(layout)
    parts, _ = step_parts(plan)
    assert simulate_step(plan).step_s == pytest.approx(float(parts.step_s), rel=1e-9)  # stages of pp=8 differ by embedding and head


def test_gradients_are_reduced_while_the_last_micro_batch_goes_back() -> None:
    """Every unit once, one at a time, none before its gradient; the first layer's ends after the last computation."""
    step = simulate_step(numbers("tp=8 sp pp=4 dp=1x2 zero=1 mb=1"))
    for rank, end in enumerate(step.ends):
        names = [each.name for each in end.reductions]
        assert len(names) == len(set(names)) == 20 + (rank in (0, 3))
        assert all(each.start_s >= each.ready_s for each in end.reductions)
        assert all(later.start_s >= earlier.end_s for earlier, later in pairwise(end.reductions))
        last_backward = step.timeline.start_s[step.timeline.rank == rank].max()
        assert last_backward < end.reductions[0].ready_s and end.reductions[-1].end_s > end.computed_s
    assert names[0] == "root" and names[1:] == [f"layer {index}" for index in range(79, 59, -1)]


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("layout", ["pp=4:zb-h1", "pp=4:zb-h2", "pp=2:zb-1p"])
def test_zero_bubble_hides_reductions_behind_its_last_weight_half_alone(layout: str, zero: int) -> None:
    """Few micro-batches and a slow link, so that the reduction sticks out: to take all of the last backward for hiding it makes the formula
    3 % too short. What is left, 3e-8, is that the stages of the formula differ by embedding and head."""
    plan = priced(LLAMA_70B, resolve_cluster("l40s"), Training(seq=4096, batch=32), parse_layout(f"tp=2 {layout} dp=1x4 zero={zero}", None),
                  STACKS["torchtitan"])  # fmt: skip
    step, formula = simulate_step(plan), step_parts(plan)[0]
    assert step.parts.dp_s > 0.1 * step.step_s
    assert float(formula.step_s) == pytest.approx(step.step_s, rel=1e-6)


@pytest.mark.parametrize(
    ("layout", "gpus", "batch"),
    [
        ("dp=4x2 zero=3", 8, 64), ("dp=4x2 zero=3 recompute=full", 8, 16), ("dp=2x4 zero=2", 8, 16), ("dp=1x8 zero=3:local", 8, 16),
        ("dp=2x8 zero=3", 16, 16), ("dp=8x2 zero=3", 16, 32),
    ],
)  # fmt: skip
def test_replicas_on_a_slow_link(layout: str, gpus: int, batch: int) -> None:
    """Gathers, scatters and the replicas' reductions stick out of the last backward by far: formula and simulator say the same."""
    slow = priced(resolve_model("llama-3.1-8b"), resolve_cluster("l40s"), Training(seq=4096, batch=batch), parse_layout(layout, gpus),
                  STACKS["torchtitan"])  # fmt: skip
    assert simulate_step(slow).step_s == pytest.approx(float(step_parts(slow)[0].step_s), rel=1e-9)


def test_one_link_carries_one_collective_at_a_time() -> None:
    """Where shards and replicas are both in one node, a step sends for no less than all its collectives together take; across nodes
    the reduction goes beside the gathers."""
    for text, gpus, one_link in (("dp=4x2 zero=3", 8, True), ("dp=2x8 zero=3", 16, False)):
        plan = priced(resolve_model("llama-3.1-8b"), resolve_cluster("l40s"), Training(seq=4096, batch=gpus), parse_layout(text, gpus),
                      STACKS["torchtitan"])  # fmt: skip
        assert plan.one_link == one_link
        (time,), (end,) = chunk_times(plan), simulate_step(plan).ends
        reduce_s = sum(count * unit.reduce_s for unit, count, _ in units_of(plan, plan.ledger.stage(0)))
        if one_link:
            assert end.reduced_s >= float(time.forward_lane_s + time.backward_lane_s + reduce_s) * (1 - ROUNDING)
        else:  # but for the root's, whose gradient is last, the reductions are hidden
            root_s = plan.root(True, True).reduce_s
            assert end.reductions[-1].end_s - end.computed_s < 1.3 * root_s < 0.6 * reduce_s


def test_a_stack_without_overlap_reduces_after_its_last_computation() -> None:
    step = simulate_step(numbers("tp=8 sp pp=4 dp=1x2 zero=1 mb=1", stack="megatron-2021"))
    assert all(end.reductions[0].start_s == end.computed_s for end in step.ends)


def test_a_rank_computes_or_waits_until_all_gradients_are_complete() -> None:
    step = simulate_step(numbers("tp=8 sp pp=4:zb-h1 dp=1x2 zero=1 mb=1"), [Slow(1.3, stage=2)])
    for rank in range(4):
        waited = sum(float(seconds[rank]) for seconds in step.waiting_s.values())
        assert float(step.timeline.busy_s[rank]) + waited == pytest.approx(step.reduced_s, rel=ROUNDING)


@given(
    st.sampled_from(SMALL),
    st.integers(0, 2**32),
    st.sampled_from(list(STACKS.values())),
    st.sampled_from(["memory", "peak", "0", "1", "2"]),
)
@settings(max_examples=40)
def test_a_faster_part_never_slows_the_simulated_step(model: Model, seed: int, stack: Stack, what: str) -> None:
    """The order of computations is fixed, so their times are sums and maxima of durations; zb-1p and zb-2p are not drawn."""
    layout, cluster = random_column(model, seed, length=1).layout(0), resolve_cluster("a100-pcie")
    if layout.pp > 1 and layout.zero >= 2 and layout.schedule.startswith(("zb", "dualpipe")):
        return  # a weight half that gets shorter leaves what the scatter takes to the input half, which others wait for
    slow, fast = (simulate_step(priced(model, c, WORKLOAD, layout, stack)).step_s for c in (cluster, faster(cluster, what)))
    assert fast <= slow * (1 + ROUNDING)


@pytest.mark.parametrize("layout", ["pp=16:dualpipe", "pp=8:dualpipe-v"])
def test_dualpipes_pairs_hide_dispatch_and_combine(layout: str) -> None:
    """A pair takes the longer of each pass and the other's dispatch (arXiv 2412.19437 section 3.2.1); a pair's backward is always of
    its rank's other chunk. 1F1B of the same model exposes all of it."""
    stages = "stages=3,4,4,4,4,4,4,4,4,4,4,4,4,4,4,2 ep=64 zero=1 mb=1"
    plan = priced(DEEPSEEK_V3, resolve_cluster("h800-sxm"), Training(seq=4096, batch=15_360), parse_layout(f"{layout} {stages}", 2048))
    step = simulate_step(plan)
    timeline, times = step.timeline, chunk_times(plan)
    second = timeline.second_of_pair.nonzero()[0]
    assert len(second) > 500
    assert (timeline.chunk[second] % 16 == 15 - timeline.chunk[second - 1] % 16).all()
    for index in second[:: len(second) // 50]:
        there, back = times[timeline.chunk[index - 1] % 16], times[timeline.chunk[index] % 16]
        out_s, in_s = there.forward.ep_s, back.backward.ep_s
        rest_there, rest_back = there.forward.total_s - out_s, back.backward.total_s - in_s
        took = timeline.end_s[index] - timeline.start_s[index]
        assert took == pytest.approx(max(rest_there, in_s) + max(rest_back, out_s), rel=1e-9)
    alone = simulate_step(priced(plan.ledger.model, plan.cluster, plan.ledger.workload, parse_layout(f"pp=16 {stages}", 2048)))
    assert step.parts.ep_s < 0.6 * alone.parts.ep_s
    formula, _ = step_parts(plan)
    assert step.step_s == pytest.approx(float(formula.step_s), rel=0.01)
    assert step.parts.ep_s == pytest.approx(float(formula.ep_s), rel=0.01)


@pytest.mark.parametrize("layout", ["pp=2:dualpipe stages=19,13", "pp=4:dualpipe stages=7,9,8,8", "pp=2:dualpipe-v stages=7,9,8,8"])
def test_a_stage_saves_what_its_own_pairs_save(layout: str) -> None:
    """Ranks r and p - 1 - r of DualPipe hold the same two stages and run the same computations, but hold them in another order."""
    plan = priced(resolve_model("mixtral-8x7b"), H100_CLUSTER, Training(seq=2048, batch=128),
                  parse_layout(f"{layout} ep=4 dp=1x4 zero=1 mb=1", None), STACKS["meshwright"])  # fmt: skip
    step, times = simulate_step(plan), chunk_times(plan)
    for rank, busy_s in enumerate(step.timeline.busy_s):
        parts = busy_parts(plan, times, rank)
        assert parts.step_s - parts.pp_s == pytest.approx(busy_s, rel=ROUNDING)
    assert step.step_s == pytest.approx(step.critical_path[-1].end_s, rel=ROUNDING)


def test_a_pipeline_that_never_waits_has_no_bubble() -> None:
    """Not one of -2e-16: two stages of DualPipe that are mirrored compute all the time."""
    plan = priced(resolve_model("llama-3.1-8b"), resolve_cluster("gb200-nvl72"), Training(seq=4096, batch=16),
                  parse_layout("pp=2:dualpipe stages=20,12 zero=1 mb=1 recompute=full", 2))  # fmt: skip
    assert 0.0 <= simulate_step(plan).bubble_fraction < 1e-4


def test_waiting_for_the_host_has_its_own_word(meshwright) -> None:  # type: ignore[no-untyped-def]
    """Layers cut over eight ranks are too small for the host to keep up on a B200; those of one rank are not."""
    job = ["llama-3.1-8b", "--cluster", "b200-sxm", "--gpus", "8", "--batch", "16"]
    said = [
        " ".join(meshwright("timeline", *job, "--seq", seq, "--layout", layout).stdout.split())
        for seq, layout in (("1024", "tp=8 sp mb=1"), ("8192", "dp=1x8 zero=1 mb=2"))
    ]
    assert "waiting for the host to launch kernels" in said[0]
    assert "waiting for the host" not in said[1]
