"""A step whose parts are known, moment by moment."""

from __future__ import annotations

import pytest

from meshwright.diagnose.slow.cases import trace_of
from meshwright.diagnose.slow.step_split import StepSplit, split_of
from meshwright.recording.trace import Trace


def split(*spans: str) -> StepSplit:
    trace = trace_of(0, 2, {"dp": [0, 1]}, spans)
    assert isinstance(trace, Trace)
    return split_of(trace)


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def test_every_part() -> None:
    found = split(
        "step 0-100", "loader 0-10", "forward 12-40 launched 11", "backward 40-70", "dp all_reduce 60-80", "optimizer 90-95 launched 1",
        "call cudaStreamSynchronize 80-100",
    )  # fmt: skip
    # Idle: 0-10 loading; 10-12 until the host launches at 11; 80-90 though the optimizer was launched; 95-100 nothing is launched any more.
    assert (ms(found.compute_s["forward"]), ms(found.compute_s["backward"])) == (
        33.0,
        30.0,
    )  # without an annotation the optimizer is forward
    assert {key: ms(value) for key, value in found.exposed_s.items()} == {("dp", "all_reduce"): 10.0}
    assert {key: ms(value) for key, value in found.hidden_s.items()} == {("dp", "all_reduce"): 10.0}
    assert {key: ms(value) for key, value in found.idle_s.items()} == {"data loading": 10.0, "host": 7.0, "device": 10.0}
    assert (ms(found.loading_s), ms(found.stepped_s), ms(found.window_s), found.steps) == (10.0, 100.0, 100.0, 1)
    assert found.longest_call is not None and found.longest_call.name == "cudaStreamSynchronize" and ms(found.longest_call.idle_s) == 15.0


def test_loading_behind_a_full_queue_is_not_idling() -> None:
    found = split("step 0-100", "loader 0-30", "forward 0-100")
    assert ms(found.loading_s) == 30.0 and found.idle_s["data loading"] == 0


def test_a_window_ends_with_the_last_kernel() -> None:
    found = split("step 0-50", "step 50-100", "forward 0-130")
    assert (ms(found.window_s), found.steps, ms(found.stepped_s)) == (130.0, 2, 100.0)


def test_without_steps_the_whole_trace_is_one() -> None:
    found = split("forward 5-20", "dp all_reduce 20-30")
    assert (found.steps, ms(found.window_s)) == (1, 30.0)  # launched at 0


def test_two_collectives_at_once_count_once() -> None:
    found = split("step 0-100", "forward 0-50", "dp all_reduce 50-80", "dp all_gather 60-90")
    assert {op: ms(value) for (_, op), value in found.exposed_s.items()} == {"all_reduce": 30.0, "all_gather": 10.0}


@pytest.mark.parametrize("spans", [("step 0-10",), ("call cudaFree 0-10",), ("dp all_reduce 0-10",)])
def test_traces_with_hardly_anything(spans: tuple[str, ...]) -> None:
    found = split(*spans)
    assert sum(found.compute_s.values()) + sum(found.exposed_s.values()) + sum(found.idle_s.values()) == pytest.approx(found.window_s)
