"""Lanes of sharded layers: by hand, against the formula of the estimate, and that no lane does two things at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshwright.chunk_time import chunk_times
from meshwright.estimate import priced
from meshwright.priced import Priced
from meshwright.spec.layout import parse_layout
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import Training
from meshwright.timeline.layers import layer_overlap
from meshwright.timeline.sharded import Ends, Layer, backward_pass, chunk_layers, forward_pass
from sample_inputs import H100_CLUSTER, LLAMA_70B


def layers(count: int, forward: float, backward: float, gather: float, scatter: float) -> list[Layer]:
    return [Layer(f"layer {index}", forward, backward, gather, gather, scatter) for index in range(count)]


def test_forward_by_hand() -> None:
    """Root 2, then gathers of 3 beside layers of 5: only the first one sticks out. Beside layers of 1 every one does, by 2."""
    assert forward_pass(layers(4, 5, 10, 3, 4), Ends(gather_s=2)).span_s == 2 + 3 + 4 * 5
    assert forward_pass(layers(4, 1, 10, 3, 4), Ends(gather_s=2)).span_s == 2 + 4 * 3 + 1


def test_backward_by_hand() -> None:
    """Gathers of 3 and scatters of 4 beside layers of 10: the first gather and the last scatter stick out. Beside layers of 5 a gather
    and a scatter take 7: the first layer has a gather alone beside it, the last one a scatter alone."""
    assert backward_pass(layers(4, 5, 10, 3, 4)).span_s == 3 + 4 * 10 + 4
    assert backward_pass(layers(4, 5, 5, 3, 4)).span_s == 3 + 5 + 7 + 7 + 5 + 4
    head = Layer("head", 2, 4, 0, 0, 0)
    assert backward_pass(layers(4, 5, 10, 3, 4), Ends(head=head)).span_s == 4 + 4 * 10 + 4  # the head hides the first gather


def test_without_overlap_everything_is_in_line() -> None:
    assert forward_pass(layers(3, 5, 10, 3, 4), hides=False).span_s == 3 * (5 + 3)
    assert backward_pass(layers(3, 5, 10, 3, 4), hides=False).span_s == 3 * (10 + 3 + 4)


def numbers(text: str, seq: int = 4096, stack: str = "torchtitan") -> Priced:
    return priced(LLAMA_70B, H100_CLUSTER, Training(seq=seq, batch=128), parse_layout(text, 64), STACKS[stack])


@pytest.mark.parametrize("stack", ["torchtitan", "megatron-2021"])
@pytest.mark.parametrize("seq", [512, 2048, 8192])
@pytest.mark.parametrize(
    "layout",
    ["dp=1x64 zero=3", "tp=8 sp dp=1x8 zero=3", "dp=1x64 zero=2", "tp=2 pp=4 dp=1x8 zero=3", "pp=40:interleaved*2 dp=1x1 cp=2 zero=3"],
)
def test_the_estimates_formula_is_the_lanes_span(layout: str, seq: int, stack: str) -> None:
    """Whether compute hides the gathers (8,192 tokens) or not (512), with and without embedding and head, one layer and eighty."""
    gpus = 80 if "pp=40" in layout else 64
    plan = priced(LLAMA_70B, H100_CLUSTER, Training(seq=seq, batch=128), parse_layout(layout, gpus), STACKS[stack])
    hides = plan.ledger.stack.hides_data_parallel
    times = chunk_times(plan)
    for index in (0, 1, -2, -1):
        if abs(index) > len(times) - (index >= 0):
            continue
        chunk = plan.ledger.pipeline.chunks[index]
        own, ends = chunk_layers(plan, chunk)
        assert forward_pass(own, ends, hides).exposed_s == pytest.approx(float(times[index].forward_dp_s), rel=1e-9, abs=1e-12)
        assert backward_pass(own, ends, hides).exposed_s == pytest.approx(float(times[index].backward_dp_s), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seq", [512, 8192])
def test_a_lane_does_one_thing_at_a_time(seq: int) -> None:
    own, ends = chunk_layers(plan := numbers("dp=1x64 zero=3", seq), plan.ledger.pipeline.chunks[0])
    for whole in (forward_pass(own, ends), backward_pass(own, ends)):
        compute = whole.lane("compute")
        collectives = sorted((p for p in whole.pieces if p.lane != "compute" and p.end_s > p.start_s), key=lambda p: p.start_s)
        assert len(compute) == 82 and len(collectives) in (81, 161)
        for lane in (compute, collectives):
            assert all(later.start_s >= earlier.end_s - 1e-15 for earlier, later in pairwise(lane))


def test_where_compute_stops_hiding_the_gather() -> None:
    """The number of tokens that is told is where it stops, but for attention, whose share grows with the sequence (a tenth here)."""
    long = layer_overlap(numbers("dp=1x64 zero=3", 4096))
    assert long is not None
    forward, backward = long.directions
    assert forward.hidden and backward.hidden and long.tokens == 4096
    for index, direction in enumerate(long.directions):
        edge = long.tokens_to_hide(direction)
        assert 512 < edge < 4096
        for tokens, hidden in ((edge * 0.85, False), (edge * 1.15, True)):
            other = layer_overlap(numbers("dp=1x64 zero=3", int(tokens) // 16 * 16))
            assert other is not None and other.directions[index].hidden is hidden
    assert layer_overlap(numbers("tp=8 sp dp=1x8 zero=1")) is None
