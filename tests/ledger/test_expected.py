"""The expected events of a rank: nothing of the ledger's counts is lost or doubled, ranks agree with each other, orders as published."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from meshwright.ledger.build import step_rows
from meshwright.ledger.expected import Expected, expected_events
from meshwright.recording.crosscheck import cross_check
from synthetic_recordings import DENSE, EXPERTS, expected_of, ledger_of, recorded, uneven_loads

DENSE_LAYOUTS = [
    "tp=2 dp=2 mb=1", "tp=4 sp dp=1x2 zero=1 mb=2", "tp=8 dp=2x2 zero=2 mb=1", "dp=2x3 zero=3 mb=1", "tp=2 sp dp=2x2 zero=3:local mb=1",
    "dp=4 zero=3:keep mb=1", "cp=4:ring dp=1x2 mb=1", "tp=2 cp=2 dp=1x2 zero=3 mb=1 recompute=selective", "cp=2:ulysses tp=4 dp=1 mb=1",
    "cp=4:usp=2x2 dp=1 mb=1 recompute=full", "tp=2 sp cp=2:allgather dp=1 mb=1 recompute=full=2", "tp=2 vocab=off dp=1 mb=1",
]  # fmt: skip
EXPERT_LAYOUTS = [
    "ep=4 dp=1x4 mb=1", "tp=2 ep=2 dp=1x2 zero=1 mb=1", "tp=2 sp ep=2 dp=2x2 zero=3 mb=1", "tp=2 sp ep=4 etp=1 dp=1x2 zero=2 mb=1",
    "cp=2 ep=2 dp=1x2 mb=1 recompute=full", "tp=4 sp ep=2 etp=2 dp=1 mb=1",
]  # fmt: skip
CASES = [(DENSE, text) for text in DENSE_LAYOUTS] + [(EXPERTS, text) for text in EXPERT_LAYOUTS]
IDS = [text for _, text in CASES]


def totals(events: list[Expected]) -> Counter[tuple[str, str, str, str]]:
    """Payload by op, axis, phase and dtype, and the number of calls."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for event in events:
        found[event.op, event.axis, event.phase, event.dtype] += event.payload_bytes + (1 << 50)
    return found


@pytest.mark.parametrize(("model", "text"), CASES, ids=IDS)
def test_the_order_holds_every_call_that_the_ledger_counts(model, text):
    ledger = ledger_of(model, text)
    stage = ledger.stage(0)
    each = [(row, count) for block, count in stage.blocks() for row in block.rows()]
    each += [(row, count) for unit, count in stage.units() for row in unit.forward + unit.backward]
    counted: Counter[tuple[str, str, str, str]] = Counter()
    for row, count in each:
        if row.op:
            counted[row.op, row.axis, row.phase, row.before.dtype] += (
                count * row.times * ledger.micro_batches * (row.payload_bytes + (1 << 50))
            )
    for row in step_rows(stage):
        if row.op:
            counted[row.op, row.axis, row.phase, row.before.dtype] += row.times * (row.payload_bytes + (1 << 50))
    assert totals(expected_events(ledger, 0)) == counted
    assert counted


@pytest.mark.parametrize(("model", "text"), CASES, ids=IDS)
def test_ranks_agree_with_each_other(model, text):
    ledger = ledger_of(model, text)
    assert cross_check(recorded(ledger, expected_of(ledger, steps=2))) == []


@pytest.mark.parametrize("text", EXPERT_LAYOUTS)
def test_ranks_agree_under_an_uneven_load(text):
    ledger = ledger_of(EXPERTS, text)
    loads = uneven_loads(ledger)
    found = recorded(ledger, expected_of(ledger, loads=loads))
    assert cross_check(found) == []
    dispatched = [e for r in found for e in r.events if e.module.endswith("moe.dispatch") and e.dtype == "float64" and e.phase == "forward"]
    assert len({event.input_splits for event in dispatched}) > 1


def test_dispatch_and_combine_of_a_load_by_hand():
    """Two ranks, four experts each; rank 0 sends 3 copies to its own experts and 1 away, rank 1 sends all 4 to rank 0."""
    ledger = ledger_of(EXPERTS, "ep=2 dp=1x2 mb=1", seq=2, m=1)
    load = np.zeros((1, 1, 2, 2, 8), dtype=int)
    load[..., 0, :] = [1, 2, 0, 0, 0, 0, 0, 1]
    load[..., 1, :] = [0, 0, 4, 0, 0, 0, 0, 0]
    events = {
        (event.module, event.phase): event
        for event in expected_events(ledger, 0, loads=load)
        if event.axis == "ep" and event.dtype == "float64" and event.module.startswith("layers.1.")
    }
    there, back = ((3, 1), (3, 4)), ((3, 4), (3, 1))
    row = 32 * 8
    for (module, phase), event in events.items():
        splits = there if (module.endswith("dispatch")) == (phase == "forward") else back
        assert (event.input_splits, event.output_splits) == splits, (module, phase)
        assert event.payload_bytes == sum(splits[0]) * row
    assert len(events) == 4


def test_etp_gathers_are_padded_to_the_longest():
    ledger = ledger_of(EXPERTS, "tp=2 sp ep=2 dp=1x2 mb=1", seq=4, m=1)
    load = np.zeros((1, 1, 2, 4, 8), dtype=int)
    load[..., :, 0] = [4, 1, 2, 0]  # all to expert 0, on the ranks 0 and 1 (etp of one another)
    load[..., :, 7] = [0, 3, 2, 4]
    for rank, rows in ((0, 6), (1, 6), (2, 7), (3, 7)):  # received: 4+2, 1+0 | 0+2, 3+4
        gathers = [e for e in expected_events(ledger, rank, loads=load) if e.axis == "etp" and e.dtype == "float64"]
        assert {event.payload_bytes for event in gathers} == {2 * rows * 32 * 8}


def test_zero_3_gathers_the_block_before_ahead_of_each_reduction():
    """FSDP2 prefetches one unit in the backward; the root stays gathered (torch.distributed.fsdp, _fsdp_param_group.py, pre_backward)."""
    events = [e for e in expected_events(ledger_of(DENSE, "dp=4 zero=3 mb=1", m=1), 0) if e.axis == "fsdp"]
    told = [f"{'gather' if e.op == 'all_gather' else 'reduce'} {e.module.removeprefix('layers.')}" for e in events]
    forward = ["gather root", "gather 0", "gather 1", "gather 2"]
    backward = ["gather 2", "gather 1", "reduce 2", "gather 0", "reduce 1", "reduce 0", "reduce root"]
    assert told == forward + backward


def test_zero_3_keep_gathers_once_and_reduces_once():
    events = [e for e in expected_events(ledger_of(DENSE, "dp=4 zero=3:keep mb=1", m=3), 0) if e.axis == "fsdp"]
    assert [e.op for e in events] == ["all_gather"] * 4 + ["reduce_scatter"] * 4


def test_ring_neighbours_and_turns():
    """Keys go to the next rank and come from the one before; in the backward keys and gradients take turns, gradients last."""
    events = [e for e in expected_events(ledger_of(DENSE, "cp=4:ring dp=1 mb=1", m=1), 1) if e.axis == "ring" and "layers.0." in e.module]
    assert {(e.op, e.peer) for e in events} == {("send", 2), ("recv", 0)}
    assert Counter(e.phase for e in events) == {"forward": 2 * 3, "backward_input": 2 * (3 + 4)}


def test_a_pipelined_layout_is_refused():
    with pytest.raises(ValueError, match="schedule"):
        expected_events(ledger_of(DENSE, "pp=3 dp=1 mb=1", m=6), 0)
