"""Each fault that gloo lets pass is found, at the place where it was planted, and a healthy run gives nothing.

The kinds are those of torch's issues 109401, 117486, 101380, 64629 and 33148, planted in synthetic recordings.
"""

import random
from dataclasses import replace

import pytest

from meshwright.recording.crosscheck import cross_check
from meshwright.recording.events import Event, Group, Header
from meshwright.recording.read import Recording

TP = [Group(name="tp.0", axis="tp", ranks=(0, 1, 2)), Group(name="tp.1", axis="tp", ranks=(3, 4, 5))]
WORLD = Group(name="world.0", axis="world", ranks=(0, 1, 2, 3, 4, 5))


def healthy(layers: int = 4) -> dict[int, list[Event]]:
    """Per layer two all_reduces of one shape, an all_to_all with uneven splits, and a send around the group."""
    calls: dict[int, list[Event]] = {}
    for group in TP:
        for place, rank in enumerate(group.ranks):
            events: list[Event] = []
            for layer in range(layers):
                for part, line in (("attention.out", 10), ("mlp.down", 20)):
                    events.append(_event(
                        events, "all_reduce", group, f"layers.{layer}.{part}", line, reduce_op="sum", dtype="float64", shape=(4, 8),
                    ))  # fmt: skip
                sent = tuple(place + other + layer for other in range(3))
                received = tuple(other + place + layer for other in range(3))
                events.append(_event(
                    events, "all_to_all", group, f"layers.{layer}.moe.dispatch", 30, dtype="float64", shape=(sum(sent), 8),
                    input_splits=sent, output_splits=received,
                ))  # fmt: skip
                for op, peer in (("send", group.ranks[(place + 1) % 3]), ("recv", group.ranks[place - 1])):
                    event = _event(events, op, group, f"layers.{layer}.attention.core", 40, dtype="float64", shape=(2, 8))
                    events.append(replace(event, kind="p2p", peer=peer, tag=0))
            events.append(_event(events, "all_reduce", WORLD, "gradient_norm", 50, reduce_op="sum", dtype="float64", shape=()))
            calls[rank] = events
    return calls


def _event(before: list[Event], op: str, group: Group, module: str, line: int, **values: object) -> Event:
    index = len(before)
    return Event(index=index, kind="collective", op=op, group=group.name, module=module, call_site=f"model.py:{line}",
                 enqueued_s=float(index), **values)  # fmt: skip


def record(calls: dict[int, list[Event]]) -> list[Recording]:
    recordings = []
    for rank, events in calls.items():
        groups = (*(group for group in TP if rank in group.ranks), WORLD)
        recordings.append(Recording(header=Header(world_size=6, rank=rank, groups=groups), events=tuple(events)))
    return recordings


def change(calls: dict[int, list[Event]], rank: int, index: int, **values: object) -> None:
    calls[rank][index] = replace(calls[rank][index], **values)


def test_a_healthy_run_gives_nothing() -> None:
    assert cross_check(record(healthy())) == []


@pytest.mark.parametrize(
    ("cause", "values"),
    [
        ("op", {"op": "all_gather"}),
        ("reduce_op", {"reduce_op": "max"}),
        ("dtype", {"dtype": "int64"}),
        ("shape", {"shape": (8, 4)}),
        ("root", {"peer": 3}),
        ("call_site", {"module": "layers.1.moe.shared.down"}),
        ("call_site", {"call_site": "model.py:11"}),
        ("progress", {"micro_batch": 1}),
        ("progress", {"step": 3}),
    ],
)
def test_one_rank_that_differs_is_named(cause: str, values: dict[str, object]) -> None:
    calls = healthy()
    change(calls, 4, 5, **values)
    (found,) = cross_check(record(calls))
    assert (found.cause, found.ranks, found.group, found.seq) == (cause, (4,), "tp.1", 3)
    assert "layers.1.attention.out" in found.message and "tp.1" in found.message


def test_two_reductions_of_one_shape_in_swapped_order() -> None:
    calls = healthy()
    calls[1][5], calls[1][6] = replace(calls[1][6], index=5), replace(calls[1][5], index=6)
    (found,) = cross_check(record(calls))
    assert (found.cause, found.ranks, found.seq) == ("order", (1,), 3)
    assert "layers.1.attention.out" in found.message and "layers.1.mlp.down" in found.message


def test_splits_that_do_not_fit() -> None:
    calls = healthy()
    index = 2
    sent = list(calls[2][index].input_splits)
    sent[0] += 1
    change(calls, 2, index, input_splits=tuple(sent))
    (found,) = cross_check(record(calls))
    assert found.cause == "splits" and 2 in found.ranks and set(found.ranks) <= {0, 2}


def test_a_rank_that_left() -> None:
    calls = healthy()
    calls[3] = calls[3][:11]
    found = cross_check(record(calls))
    assert all(divergence.cause in ("missing", "unmatched") and divergence.ranks == (3,) for divergence in found)
    assert {divergence.group for divergence in found} == {"tp.1", "world.0"}
    first = found[0]
    assert first.group == "tp.1" and first.seq == 7 and "rank 3 ended after all_reduce" in first.message
    assert "layers.2.attention.out" in first.message


def test_a_skipped_collective_is_told_where_it_was_skipped() -> None:
    calls = healthy()
    del calls[0][6]
    found = [divergence for divergence in cross_check(record(calls)) if divergence.cause != "unmatched"]
    assert (found[0].group, found[0].seq, found[0].ranks, found[0].cause) == ("tp.0", 4, (0,), "missing")
    assert "rank 0 left a call out" in found[0].message and "layers.1.mlp.down" in found[0].message


def test_one_call_too_many() -> None:
    calls = healthy()
    calls[4].insert(6, replace(calls[4][6], module="layers.1.mlp.gate_up"))
    found = cross_check(record(calls))[0]
    assert (found.group, found.seq, found.ranks, found.cause) == ("tp.1", 4, (4,), "extra")


def test_one_micro_batch_less_shows_where_the_next_step_begins() -> None:
    """All calls look alike, as in a loop over micro-batches: only their number in the step tells them apart."""

    def run(steps: list[int]) -> list[Event]:
        events: list[Event] = []
        for step, micro_batches in enumerate(steps):
            for index in range(micro_batches):
                event = _event(events, "all_reduce", TP[0], "layers.0.mlp.down", 1, dtype="float64", shape=(4, 8))
                events.append(replace(event, step=step, micro_batch=index))
        return events

    (found,) = cross_check(record({0: run([4, 4]), 1: run([3, 5]), 2: run([4, 4])}))
    assert (found.cause, found.seq, found.ranks) == ("missing", 3, (1,))
    assert "step 0, micro-batch 3" in found.message and "step 1, micro-batch 0" in found.message


def test_a_receive_of_another_size_and_a_send_without_receive() -> None:
    calls = healthy()
    receive = next(event.index for event in calls[1] if event.op == "recv")
    change(calls, 1, receive, shape=(4, 8))
    (found,) = cross_check(record(calls))
    assert (found.cause, found.ranks) == ("shape", (0, 1))
    calls = healthy()
    calls[2] = [event for event in calls[2] if event.op != "recv"]
    (found,) = cross_check(record(calls))
    assert (found.cause, found.ranks, found.seq) == ("unmatched", (2,), 0)


def test_two_ranks_without_a_majority_are_both_named() -> None:
    calls = {rank: events for rank, events in healthy().items() if rank in (0, 1)}
    change(calls, 1, 0, dtype="float32")
    found = cross_check(record(calls))
    assert found[0].ranks == (0, 1)


def test_the_earliest_divergence_comes_first() -> None:
    calls = healthy()
    change(calls, 5, 10, dtype="float32")
    change(calls, 0, 6, dtype="float32")
    assert [divergence.group for divergence in cross_check(record(calls))] == ["tp.0", "tp.1"]


@pytest.mark.parametrize("seed", range(30))
def test_a_random_fault_at_a_random_place_is_found_where_it_is(seed: int) -> None:
    pick = random.Random(seed)
    calls = healthy()
    rank = pick.randrange(6)
    index = pick.choice([event.index for event in calls[rank] if event.op == "all_reduce" and event.group != "world.0"])
    values = pick.choice([{"dtype": "int64"}, {"reduce_op": "avg"}, {"shape": (3, 8)}, {"module": "elsewhere"}, {"op": "all_gather"}])
    change(calls, rank, index, **values)
    (found,) = cross_check(record(calls))
    assert found.ranks == (rank,) and found.events[rank].index == index
