"""The order of a pipelined step against what does not come from it: ``explain``'s counts of every call, and the schedule's own messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import cycle, islice

import pytest

from meshwright.explain.listing import StageListing
from meshwright.ledger.build import build as build_ledger
from meshwright.ledger.expected import expected_events
from meshwright.ledger.pipelined_order import stage_order
from meshwright.schedule import Kind, Schedule, build, with_communication
from meshwright.spec.layout import parse_layout
from meshwright.spec.rules import check
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import Training
from proof_models import MODELS

CASES = [
    ("llama", 4, "pp=2:gpipe dp=1x2 zero=3 mb=1"),
    ("llama", 4, "pp=4:1f1b tp=2 sp dp=1x2 zero=1 mb=1"),
    ("gpt2", 5, "pp=4:zb-h1 tp=2 dp=2x2 zero=2 mb=1"),
    ("gpt2", 4, "pp=2:zb-v dp=1x2 zero=3 mb=1"),
    ("bloom", 4, "pp=2:interleaved*2 dp=1x2 zero=3 mb=1"),
    ("qwen3_moe", 4, "pp=2:interleaved*2 cp=2 ep=2 dp=1x2 zero=3:local mb=1 recompute=full"),
    ("deepseek_v3", 8, "pp=4:dualpipe ep=2 dp=1x2 zero=2 mb=1"),
    ("deepseek_v3", 8, "pp=2:dualpipe-v tp=2 sp ep=2 dp=1x2 zero=3 mb=1"),
    ("mixtral", 4, "pp=2:zb-2p dp=2x2 zero=3:keep mb=1 recompute=selective"),
]


def ledger_and_schedule(family: str, m: int, text: str):
    layout = parse_layout(text)
    model = MODELS[family]
    model = replace(model, layers=tuple(islice(cycle(model.layers), layout.pp * layout.virtual_stages)))
    workload = Training(seq=16, batch=m * layout.dp * layout.mb)
    check(model, workload, layout)
    ledger = build_ledger(model, workload, layout, STACKS["meshwright"])
    return ledger, build(layout.schedule, layout.pp, layout.virtual_stages, m)


def key(row):
    return row.phase, row.name, row.op, row.axis, int(row.payload_bytes)


@pytest.mark.parametrize(("family", "m", "text"), CASES, ids=[f"{family} {text}" for family, _, text in CASES])
def test_every_call_that_explain_counts_is_in_the_order_and_no_other(family: str, m: int, text: str):
    ledger, schedule = ledger_and_schedule(family, m, text)
    for stage in range(schedule.num_ranks):
        ordered = Counter(key(placed.row) for placed in stage_order(ledger, stage, schedule))
        counted: Counter[tuple] = Counter()
        for listed in StageListing(ledger, stage).rows:
            if listed.row.op is not None:
                counted[key(listed.row)] += listed.calls
        assert ordered == +counted, stage


@pytest.mark.parametrize(("family", "m", "text"), CASES, ids=[f"{family} {text}" for family, _, text in CASES])
def test_messages_are_the_schedules_with_their_peers(family: str, m: int, text: str):
    ledger, schedule = ledger_and_schedule(family, m, text)
    schedule = with_communication(schedule)
    width = ledger.layout.world_size // schedule.num_ranks  # pp is outermost
    for stage in range(schedule.num_ranks):
        found = [event for event in expected_events(ledger, stage * width, 1, None, schedule) if event.axis == "pp"]
        wanted = [action for action in schedule.actions[stage] if action.kind >= Kind.SEND_FORWARD]
        assert [(event.micro_batch, event.chunk, event.op, event.phase) for event in found] == [
            (
                action.micro_batch,
                action.chunk,
                "send" if action.kind in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD) else "recv",
                "forward" if action.kind in (Kind.SEND_FORWARD, Kind.RECV_FORWARD) else "backward_input",
            )
            for action in wanted
        ]
        assert [event.peer for event in found] == [_other(schedule, action) * width for action in wanted]


def _other(schedule: Schedule, action) -> int:
    """The pipeline rank at the other end: forward goes up the chunks, backward down; a receive looks the other way."""
    up = action.kind in (Kind.SEND_FORWARD, Kind.RECV_BACKWARD)
    return schedule.rank_of_chunk[action.chunk + (1 if up else -1)]


def test_the_gradient_of_an_input_leaves_before_the_weight_half_sends_anything():
    """zb-h1 on the last stage: in each backward the input half's collectives, the message, then the weight half's."""
    ledger, schedule = ledger_and_schedule("llama", 3, "pp=2:zb-h1 tp=2 sp dp=1x2 zero=2 mb=1")
    events = [e for e in expected_events(ledger, 4, 1, None, schedule) if e.micro_batch == 0 and e.phase != "forward"]
    phases = [event.axis if event.axis == "pp" else event.phase for event in events]
    message = phases.index("pp")
    assert "backward_weight" not in phases[:message] and "backward_input" not in phases[message + 1 :]
    assert {"backward_weight", "reduce"} <= set(phases[message + 1 :])
