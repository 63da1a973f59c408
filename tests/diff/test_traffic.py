"""Each fault planted in a recording is found, named by module and reason, first divergence first; a faithful recording gives nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from meshwright.diff.traffic import compare_rank, compare_traffic
from meshwright.recording.events import Event
from meshwright.recording.read import Recording
from synthetic_recordings import DENSE, EXPERTS, expected_of, ledger_of, recorded, uneven_loads

LEDGER = ledger_of(DENSE, "tp=4 sp dp=1x2 zero=1 mb=1")
EXPECTED = expected_of(LEDGER, steps=2)
RANK = 5


def faithful() -> Recording:
    return recorded(LEDGER, EXPECTED)[RANK]


def place(module: str, op: str, phase: str, step: int = 1) -> int:
    """Index of the first such event of a step."""
    return next(
        i for i, e in enumerate(EXPECTED[RANK]) if (e.module, e.op, e.phase, e.step) == (module, op, phase, step)
    )  # fmt: skip


def damaged(change: Callable[[list[Event]], None]) -> Recording:
    events = list(faithful().events)
    change(events)
    return replace(faithful(), events=tuple(events))


def set_at(index: int, **values: object) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        events[index] = replace(events[index], **values)  # type: ignore[arg-type]

    return change


DOWN = place("layers.1.mlp.down", "reduce_scatter", "forward")
QKV = place("layers.2.attention.qkv", "all_gather", "backward_weight")


def test_a_faithful_recording_gives_nothing():
    traffic = compare_traffic(EXPECTED, recorded(LEDGER, EXPECTED))
    assert traffic.mismatches == ()
    assert traffic.predicted == traffic.recorded == sum(map(len, EXPECTED.values())) > 500


@pytest.mark.parametrize(
    ("kind", "index", "values"),
    [
        ("bytes", DOWN, {"payload_bytes": 123, "shape": (123,)}),
        ("dtype", DOWN, {"dtype": "float32"}),
        ("op", DOWN, {"op": "all_reduce"}),
        ("reduce_op", DOWN, {"reduce_op": "avg"}),
        ("place", DOWN, {"module": "layers.1.attention.out"}),
        ("place", QKV, {"phase": "backward_input"}),
        ("place", QKV, {"micro_batch": 1}),
        ("bytes", QKV, {"payload_bytes": 1}),
    ],
)
def test_one_changed_event_is_one_mismatch(kind, index, values):
    found = compare_rank(EXPECTED[RANK], damaged(set_at(index, **values)))
    event = EXPECTED[RANK][index]
    assert [(m.kind, m.module, m.rank, m.step) for m in found] == [(kind, event.module, RANK, 1)]
    assert event.why and event.why in found[0].message and event.module in found[0].message


def test_a_missing_event_is_named_and_shifts_nothing():
    found = compare_rank(EXPECTED[RANK], damaged(lambda events: events.pop(DOWN)))
    assert [(m.kind, m.module, m.phase) for m in found] == [("missing", "layers.1.mlp.down", "forward")]


def test_an_extra_event_is_named():
    found = compare_rank(EXPECTED[RANK], damaged(lambda events: events.insert(DOWN, events[DOWN])))
    assert [(m.kind, m.module, m.phase) for m in found] == [("extra", "layers.1.mlp.down", "forward")]


def test_two_swapped_collectives_are_out_of_order():
    """Same shape, same bytes: only their places tell. The nearer one is enough."""

    def swap(events: list[Event]) -> None:
        first, second = place("layers.1.attention.qkv", "all_gather", "forward"), place("layers.1.mlp.gate_up", "all_gather", "forward")
        events[first], events[second] = events[second], events[first]

    found = compare_rank(EXPECTED[RANK], damaged(swap))
    assert {m.kind for m in found} == {"order"}
    assert {m.module for m in found} <= {"layers.1.attention.qkv", "layers.1.mlp.gate_up", "layers.1.attention.out"}


def test_a_collective_in_the_wrong_group():
    groups = {group.axis: group.name for group in faithful().header.groups}
    found = compare_rank(EXPECTED[RANK], damaged(set_at(DOWN, group=groups["fsdp"])))
    assert [(m.kind, m.axis, m.module) for m in found] == [("group", "tp", "layers.1.mlp.down")]


def test_an_axis_that_spans_other_ranks():
    wrong = tuple(replace(g, ranks=(1, 5)) if g.axis == "tp" else g for g in faithful().header.groups)
    recording = replace(faithful(), header=replace(faithful().header, groups=wrong))
    found = compare_rank(EXPECTED[RANK], recording)
    assert {m.kind for m in found} == {"group"}
    assert {m.axis for m in found} == {"tp"}


def test_a_group_that_no_axis_has():
    found = compare_rank(EXPECTED[RANK], damaged(lambda events: events.append(replace(events[0], group="17", module="stray"))))
    assert [(m.kind, m.axis, m.module) for m in found] == [("extra", "17", "stray")]


def test_the_first_divergence_comes_first():
    early, late = place("layers.0.mlp.down", "reduce_scatter", "forward", step=0), DOWN

    def change(events: list[Event]) -> None:
        events[late] = replace(events[late], payload_bytes=1)
        events[early] = replace(events[early], dtype="bf16")

    traffic = compare_traffic(EXPECTED, [damaged(change), *(r for r in recorded(LEDGER, EXPECTED) if r.rank != RANK)])
    assert [(m.kind, m.step) for m in traffic.mismatches] == [("dtype", 0), ("bytes", 1)]


def test_a_rank_that_died_is_judged_by_what_it_did():
    events = faithful().events[:DOWN]
    found = compare_rank(EXPECTED[RANK], replace(faithful(), events=events), finished=False)
    assert [(m.kind, m.module) for m in found] == [("unfinished", "layers.1.mlp.down")]
    wrong = (*events[:10], replace(events[10], payload_bytes=1), *events[11:])
    found = compare_rank(EXPECTED[RANK], replace(faithful(), events=wrong), finished=False)
    assert [m.kind for m in found] == ["bytes", "unfinished"]


def test_a_rank_without_a_recording_is_told():
    traffic = compare_traffic(EXPECTED, [r for r in recorded(LEDGER, EXPECTED) if r.rank != RANK])
    assert [(m.kind, m.rank) for m in traffic.mismatches] == [("unfinished", RANK)]


def test_splits_are_compared_where_the_load_is_known():
    ledger = ledger_of(EXPERTS, "ep=4 dp=1x4 mb=1")
    expected = expected_of(ledger, loads=uneven_loads(ledger))
    recording = recorded(ledger, expected)[0]
    index = next(i for i, e in enumerate(expected[0]) if e.splits_known and e.input_splits[0] != e.input_splits[1])
    splits = expected[0][index].input_splits
    events = list(recording.events)
    events[index] = replace(events[index], input_splits=(splits[1], splits[0], *splits[2:]))
    found = compare_rank(expected[0], replace(recording, events=tuple(events)))
    assert [m.kind for m in found] == ["splits"]


def test_mismatches_become_plain_json():
    import json

    found = compare_rank(EXPECTED[RANK], damaged(set_at(DOWN, payload_bytes=123)))
    values = json.loads(json.dumps(found[0].as_json()))
    assert values["kind"] == "bytes"
    assert values["expected"]["payload_bytes"] == EXPECTED[RANK][DOWN].payload_bytes
    assert values["recorded"]["payload_bytes"] == 123
