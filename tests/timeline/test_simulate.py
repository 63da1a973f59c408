"""The simulator's accounts: every second of every rank has a cause, the critical path has no gaps, memory follows the lists."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.schedule import Kind, Schedule, build, with_communication
from meshwright.schedule.in_flight import count_in_flight
from meshwright.timeline import (
    Costs,
    Timeline,
    activation_memory,
    critical_path,
    culprit,
    simulate,
    uniform_costs,
    waiting_s,
    waits,
)

CASES = [
    ("naive", 3, 1, 4), ("gpipe", 4, 1, 6), ("1f1b", 4, 1, 8), ("1f1b", 1, 1, 3), ("interleaved", 4, 2, 8), ("zb-h1", 4, 1, 9),
    ("zb-h2", 3, 1, 7), ("zb-2p", 4, 1, 8), ("zb-v", 4, 2, 5), ("dualpipe", 4, 1, 10), ("dualpipe-v", 3, 2, 7),
]  # fmt: skip


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    schedule = build(*draw(st.sampled_from(CASES)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    chunks, m = schedule.num_chunks, schedule.num_micro_batches
    shape = draw(st.sampled_from([(chunks,), (chunks, m)]))
    durations = random.uniform(0.2, 2.0, (3, *shape))
    transfers = random.uniform(0.0, 0.3, (2, chunks)) * draw(st.sampled_from([0, 1]))
    saving = random.uniform(0.0, 0.2, chunks)
    return simulate(schedule, Costs(
        forward_s=durations[0], backward_input_s=durations[1], backward_weight_s=durations[2],
        forward_transfer_s=transfers[0], backward_transfer_s=transfers[1], paired_saving_s=saving, overlap=draw(st.booleans()),
    ))  # fmt: skip


def naively(schedule: Schedule, costs: Costs) -> dict[tuple[Any, ...], tuple[float, float]]:
    """The times by relaxation: every start is the latest of its constraints, until nothing changes."""
    times: dict[tuple[Any, ...], tuple[float, float]] = {}

    def cost(values: np.ndarray, action: Any) -> float:
        return float(values[action.chunk] if values.ndim == 1 else values[action.chunk, action.micro_batch])

    def message(source: int, target: int, values: np.ndarray) -> float:
        return float(values[source]) if schedule.rank_of_chunk[source] != schedule.rank_of_chunk[target] else 0.0

    def duration(action: Any) -> float:
        whole = cost(costs.backward_input_s, action) + cost(costs.backward_weight_s, action)
        return {
            Kind.FORWARD: cost(costs.forward_s, action), Kind.BACKWARD: whole,
            Kind.BACKWARD_INPUT: cost(costs.backward_input_s, action), Kind.BACKWARD_WEIGHT: cost(costs.backward_weight_s, action),
        }[action.kind]  # fmt: skip

    for _ in range(sum(map(len, schedule.actions)) + 1):
        before = dict(times)
        for actions in schedule:
            free, step = 0.0, 0
            while step < len(actions):
                group = actions[step : step + (2 if actions[step].pairs_with_next else 1)]
                start, held = free, 0.0
                for a in group:
                    forward = a.kind == Kind.FORWARD
                    if forward and not schedule.is_first(a.chunk):
                        arrived = times.get((True, a.chunk - 1, a.micro_batch), (0.0, 0.0))[1]
                        start = max(start, arrived + message(a.chunk - 1, a.chunk, costs.forward_transfer_s))
                    if a.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and not schedule.is_last(a.chunk):
                        arrived = times.get((False, a.chunk + 1, a.micro_batch), (0.0, 0.0))[1]
                        start = max(start, arrived + message(a.chunk + 1, a.chunk, costs.backward_transfer_s))
                    if not costs.overlap and forward and not schedule.is_last(a.chunk):
                        held += message(a.chunk, a.chunk + 1, costs.forward_transfer_s)
                    if not costs.overlap and a.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and not schedule.is_first(a.chunk):
                        held += message(a.chunk, a.chunk - 1, costs.backward_transfer_s)
                end = start + sum(map(duration, group)) - (float(costs.paired_saving_s[group[0].chunk]) if len(group) == 2 else 0.0)
                for a in group:
                    times[a.kind if a.kind == Kind.BACKWARD_WEIGHT else a.kind == Kind.FORWARD, a.chunk, a.micro_batch] = start, end
                free, step = end + held, step + len(group)
        if times == before:
            return times
    raise AssertionError("no fixed point")


@given(timelines())
def test_times_are_the_least_that_meet_every_constraint(timeline: Timeline) -> None:
    expected = naively(timeline.schedule, timeline.costs)
    for event in timeline:
        kind = event.kind if event.kind == Kind.BACKWARD_WEIGHT else event.kind == Kind.FORWARD
        # sums of at most a thousand durations of about 1
        assert (event.start_s, event.end_s) == pytest.approx(expected[kind, event.chunk, event.micro_batch], abs=1e-9)


@given(timelines())
def test_every_second_of_a_rank_has_one_cause(timeline: Timeline) -> None:
    total = sum(waiting_s(timeline).values()) + timeline.busy_s
    assert total == pytest.approx(np.full(timeline.schedule.num_ranks, timeline.span_s))
    assert all(wait.end_s > wait.start_s for wait in waits(timeline))


@given(timelines())
def test_the_critical_path_goes_from_start_to_end_without_a_gap(timeline: Timeline) -> None:
    path = critical_path(timeline)
    assert path[0].start_s == 0.0
    assert path[-1].end_s == timeline.end_s.max()
    assert all(a.end_s == pytest.approx(b.start_s, abs=1e-9) for a, b in pairwise(path))


@given(timelines())
def test_shortening_the_critical_path_shortens_the_step(timeline: Timeline) -> None:
    """Its longest computation takes half as long: the span shrinks, by no more than that."""
    costs = timeline.costs
    assume(costs.forward_s.ndim == 2)
    link = max((one for one in critical_path(timeline) if one.what != "transfer"), key=lambda one: one.end_s - one.start_s)
    shorter = {name: getattr(costs, name).copy() for name in ("forward_s", "backward_input_s", "backward_weight_s")}
    before = sum(values[link.chunk, link.micro_batch] for values in shorter.values())
    for values in shorter.values():
        values[link.chunk, link.micro_batch] *= 0.5
    again = simulate(timeline.schedule, replace(costs, **shorter))
    assert timeline.span_s - before / 2 - 1e-9 <= again.span_s <= timeline.span_s + 1e-9


@given(timelines())
def test_memory_over_time_peaks_at_the_in_flight_count(timeline: Timeline) -> None:
    counts = count_in_flight(timeline.schedule)
    for rank in range(timeline.schedule.num_ranks):
        memory = activation_memory(timeline, rank)
        paired = bool(timeline.second_of_pair[timeline.rank == rank].any())
        # a pair starts its forward while the backward's activations are still there, as the count does
        assert memory.peak_bytes == counts[rank] or (paired and memory.peak_bytes <= counts[rank] + 1)
        assert memory.held_bytes[-1] == pytest.approx(0.0, abs=1e-9)
        part = activation_memory(timeline, rank, saved_bytes=10.0, weight_share=0.25)
        assert part.peak_bytes <= 10.0 * memory.peak_bytes


def test_messages_in_the_lists_change_nothing() -> None:
    schedule = build("interleaved", 4, 2, 8)
    costs = uniform_costs(schedule, transfer_s=0.1)
    assert simulate(with_communication(schedule), costs).span_s == simulate(schedule, costs).span_s


def test_waiting_by_cause_of_1f1b() -> None:
    """p=2, m=2, F=1, B=2, transfer 0.5, by hand: rank 0 F0 F1 ... B0 at 5, rank 1 F0 at 1.5, B0 to 4.5, F1, B1 to 7.5."""
    schedule = build("1f1b", 2, 1, 2)
    timeline = simulate(schedule, uniform_costs(schedule, transfer_s=0.5))
    assert [(e.rank, e.start_s, e.end_s) for e in timeline] == [
        (0, 0.0, 1.0), (0, 1.0, 2.0), (0, 5.0, 7.0), (0, 8.0, 10.0), (1, 1.5, 2.5), (1, 2.5, 4.5), (1, 4.5, 5.5), (1, 5.5, 7.5),
    ]  # fmt: skip
    by_cause = {cause: values.tolist() for cause, values in waiting_s(timeline).items()}
    assert by_cause == {
        "upstream": [0, 0],
        "downstream": [3.0, 0],
        "transfer": [1.0, 0],
        "sending": [0, 0],
        "start": [0, 1.5],
        "end": [0, 2.5],
    }
    assert timeline.span_s == 10.0
    assert timeline.bubble_fraction == pytest.approx(1 - 12 / 20)


def test_an_impossible_order_is_refused_with_rank_step_and_action() -> None:
    """Rank 0 waits for the backward of micro-batch 0 before it runs the forward of 1, which rank 1 wants first."""
    schedule = build("naive", 2, 1, 2)
    swapped = tuple(action for k in (1, 0) for action in schedule.actions[1] if action.micro_batch == k)
    with pytest.raises(InputError) as refused:
        simulate(replace(schedule, actions=(schedule.actions[0], swapped)), uniform_costs(schedule))
    assert [(m.key, m.value) for m in refused.value.mistakes] == [("rank 0, step 1", "0B0"), ("rank 1, step 0", "1F1")]


def test_no_culprit_among_equals() -> None:
    for case in CASES:
        schedule = build(*case)
        timeline = simulate(schedule, uniform_costs(schedule))
        if case[0] not in ("dualpipe", "dualpipe-v"):
            assert culprit(timeline) is None, case


def test_a_rank_that_sends_is_not_idle() -> None:
    """p=2, m=2, F=1, B=2, messages of 0.5 that hold their sender: rank 0 sends two activations, rank 1 two gradients, the last one
    while rank 0 waits for it."""
    schedule = build("1f1b", 2, 1, 2)
    timeline = simulate(schedule, uniform_costs(schedule, transfer_s=0.5, overlap=False))
    assert timeline.sending_s.tolist() == [1.0, 1.0]
    assert waiting_s(timeline)["sending"].tolist() == [1.0, 1.0]
    assert timeline.bubble_fraction == pytest.approx(1 - (12 + 2) / (2 * timeline.span_s))
