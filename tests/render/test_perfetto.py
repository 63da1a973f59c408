"""The Perfetto trace: what Chrome's trace event format asks for, and the timeline's own times."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from meshwright.render.perfetto import LANES, perfetto_trace
from meshwright.schedule import build
from meshwright.timeline import simulate, uniform_costs, waiting_s


@pytest.mark.parametrize("case", [("1f1b", 4, 1, 8), ("dualpipe", 4, 1, 8)], ids=lambda case: case[0])
def test_a_trace_has_every_computation_wait_and_message(case: tuple[str, int, int, int]) -> None:
    schedule = build(*case)
    timeline = simulate(schedule, uniform_costs(schedule, transfer_s=0.1))
    events = json.loads(json.dumps(perfetto_trace(timeline)))["traceEvents"]
    names = [event for event in events if event["ph"] == "M"]
    assert len(names) == schedule.num_ranks * (1 + len(LANES))
    spans = [event for event in events if event["ph"] == "X"]
    assert all({"name", "pid", "tid", "ts", "dur"} <= event.keys() and event["dur"] > 0 for event in spans)
    lanes = [[event for event in spans if event["tid"] == lane] for lane in LANES]
    compute, waiting, messages = lanes
    # microseconds of sums of at most a hundred durations of about 1
    assert sum(event["dur"] for event in compute) == pytest.approx(1e6 * timeline.busy_s.sum())
    assert sum(event["dur"] for event in waiting) == pytest.approx(1e6 * sum(map(sum, waiting_s(timeline).values())))
    assert len(messages) == 2 * 3 * 8
    assert all(event["dur"] == pytest.approx(1e5) for event in messages)


def test_computations_of_a_rank_do_not_overlap() -> None:
    schedule = build("interleaved", 4, 2, 8)
    events = perfetto_trace(simulate(schedule, uniform_costs(schedule)))["traceEvents"]
    assert isinstance(events, list)
    for rank in range(4):
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == rank and e["tid"] == 0)
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(spans))
