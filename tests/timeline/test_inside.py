"""Inside a layer: the pieces add up to the price that the rest of the program has, and a ring hides what it can."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from meshwright.estimate import priced
from meshwright.render.perfetto import step_trace
from meshwright.render.timeline import timeline_text
from meshwright.spec.layout import parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import Training
from meshwright.timeline.inside import inside_layer
from meshwright.timeline.report import report_timeline

LAYOUTS = [
    ("llama-3.1-70b", "tp=8 sp dp=1x8 mb=1"),
    ("llama-3.1-70b", "tp=4 cp=4:ring dp=1x4 mb=1 recompute=full"),
    ("llama-3.1-8b", "cp=8:zigzag dp=1x8 mb=1"),
    ("llama-3.1-8b", "tp=2 cp=8:usp=4x2 dp=1x4 mb=1 recompute=selective"),
    ("qwen3-30b-a3b", "tp=2 sp cp=2:ulysses ep=8 dp=1x16 mb=1"),
    ("deepseek-v3", "tp=2 sp cp=2:ring ep=16 dp=1x16 mb=1"),
]


def numbers_of(model: str, layout: str, stack: str = "megatron", seq: int = 8192):
    parsed = parse_layout(layout)
    workload = Training(seq=seq, batch=parsed.dp * parsed.mb)
    return priced(resolve_model(model), resolve_cluster("h100-sxm"), workload, parsed, STACKS[stack])


@pytest.mark.parametrize("stack", ["megatron", "fsdp", "meshwright"])
@pytest.mark.parametrize(("model", "layout"), LAYOUTS)
def test_the_pieces_add_up_to_the_layers_price(model: str, layout: str, stack: str) -> None:
    numbers = numbers_of(model, layout, stack)
    inside = inside_layer(numbers)
    assert inside is not None
    counts = {block: count for chunk in numbers.ledger.pipeline.chunks for block, count in chunk.layers}
    block = numbers.layer(max(counts, key=counts.__getitem__))
    forward, backward = inside.passes
    # the same numbers added in another order
    assert forward.span_s == pytest.approx(float(block.forward_s), rel=1e-12)
    assert backward.span_s == pytest.approx(float(block.backward_s), rel=1e-12)
    for axis in ("tp", "cp", "ep"):
        assert forward.exposed_s(axis) == pytest.approx(float(getattr(block.forward, f"{axis}_s")), rel=1e-9, abs=1e-15)
    for one in inside.passes:
        for lane in ("compute", "tp", "cp", "ep"):
            pieces = [piece for piece in one.pieces if piece.lane == lane]
            assert all(a.end_s <= b.start_s * (1 + 1e-12) for a, b in pairwise(pieces)), lane


def test_a_ring_on_a_slow_network_sticks_out_and_on_a_fast_one_hides() -> None:
    """4 blocks: 3 exchanges beside 3 quarters of the core."""
    numbers = numbers_of("llama-3.1-8b", "cp=4:ring dp=1x2 mb=1", seq=32768)
    forward = inside_layer(numbers).passes[0]
    assert forward.busy_s("cp") > 0
    assert forward.exposed_s("cp") < 0.1 * forward.busy_s("cp")
    cluster = numbers.cluster
    slow = replace(
        cluster, tiers=tuple(replace(tier, bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s / 1e3, curves=()) for tier in cluster.tiers)
    )
    ledger = numbers.ledger
    crawling = inside_layer(priced(ledger.model, slow, ledger.workload, ledger.layout, ledger.stack)).passes[0]
    core_s = sum(piece.end_s - piece.start_s for piece in crawling.pieces if "/4" in piece.name and piece.lane == "compute")
    assert crawling.exposed_s("cp") == pytest.approx(crawling.busy_s("cp") - 0.75 * core_s, rel=1e-9)


def test_a_layer_without_collectives_is_not_drawn() -> None:
    assert inside_layer(numbers_of("llama-3.1-8b", "dp=1x8 zero=1 mb=1")) is None


def test_text_and_trace_show_a_lane_for_each_axis() -> None:
    numbers = numbers_of("deepseek-v3", "tp=2 sp cp=2:ring ep=16 dp=1x16 mb=1")
    report = report_timeline(numbers)
    text = timeline_text(report)
    assert "Forward of one layer (moe)" in text
    assert "ep sends for" in text
    trace = step_trace(report)["traceEvents"]
    lanes = {event["args"]["name"] for event in trace if event["ph"] == "M" and event["name"] == "thread_name"}
    assert {"collectives (tp)", "collectives (cp)", "collectives (ep)"} <= lanes
    seconds = sum(event["dur"] for event in trace if event["ph"] == "X" and event["name"].startswith(("forward ", "backward ")))
    assert seconds > 0
    assert report.as_json()["inside_layer"]["forward"]["exposed_s"]["ep"] > 0
