"""The verdict follows from what was compared; anything missing or wrong fails; JSON has the documented keys; the text is one screen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.diff.traffic import compare_traffic
from meshwright.prove.certificate import Certificate, Memory
from synthetic_recordings import DENSE, expected_of, ledger_of, recorded

GOOD = Certificate(
    plan_hash="sha256:0", versions={"torch": "2.13.0"}, dtype="float64", bound=1e-12, ranks=4, model="llama-3.1-70b",
    layout="tp=2 dp=1x2 zero=3 mb=1", plan_layout="tp=8 dp=1x8 zero=3 mb=1", seq=12, batch=6, steps=3, seed=1, scaled=("tp 8 -> 2",),
    max_loss_error=1e-16, max_grad_error=1e-15, max_weight_error=2e-15, max_norm_error=0.0, worst=("weight a",), drift=0.0, predicted=10,
    recorded=10, memory=Memory(compared=4),
)  # fmt: skip


def mismatches():
    ledger = ledger_of(DENSE, "tp=4 sp dp=1 mb=1")
    expected = expected_of(ledger)
    recordings = recorded(ledger, expected)
    damaged = [replace(r, events=tuple(replace(e, dtype="bf16") for e in r.events)) for r in recordings]
    return compare_traffic(expected, damaged).mismatches


def test_a_complete_and_equal_run_passes():
    assert GOOD.passed
    assert GOOD.as_json()["verdict"] == "pass"
    assert GOOD.text().startswith("proof PASSED: llama-3.1-70b, tp=2 dp=1x2 zero=3 mb=1")


@pytest.mark.parametrize(
    "fault",
    [
        {"max_loss_error": 2e-12},
        {"max_grad_error": 2e-12},
        {"max_weight_error": float("inf")},
        {"max_norm_error": 2e-12},
        {"drift": 2e-12},
        {"max_grad_error": None},
        {"max_loss_error": float("nan")},
        {"max_weight_error": float("nan")},
        {"recorded": 9},
        {"predicted": 11},
        {"predicted": 0, "recorded": 0},
        {"mismatches": mismatches()[:1]},
        {"disagreements": ("tp.0: ranks differ",)},
        {"memory": Memory(compared=4, mismatches=((0, "head", 1, 2),))},
        {"failures": ({"rank": 1, "message": "killed by SIGKILL", "stack": ""},)},
        {"problems": ("weight a is missing",)},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_any_fault_fails(fault):
    bad = replace(GOOD, **fault)
    assert not bad.passed
    assert json.loads(json.dumps(bad.as_json(), allow_nan=False))["verdict"] == "fail"
    assert bad.text().startswith("proof FAILED")


def test_one_rank_alone_sends_nothing():
    assert replace(GOOD, ranks=1, predicted=0, recorded=0).passed


def test_a_dry_run_has_no_numbers():
    without = {"max_loss_error": None, "max_grad_error": None, "max_weight_error": None, "max_norm_error": None, "drift": None}
    assert replace(GOOD, **without, dry=True).passed
    assert not replace(GOOD, **without, dry=True, recorded=9).passed
    assert not replace(GOOD, **without).passed


def test_the_json_has_the_documented_keys():
    values = GOOD.as_json()
    documented = {"verdict", "dtype", "ranks", "layout", "scaled", "max_loss_error", "max_grad_error", "max_weight_error", "collectives"}
    assert documented <= set(values)
    assert {"predicted", "recorded", "mismatches"} <= set(values["collectives"])


def test_the_text_stays_on_one_screen():
    bad = replace(GOOD, mismatches=mismatches(), failures=({"rank": 1, "message": "m", "stack": "line\n" * 100},), problems=("m",))
    lines = bad.text().splitlines()
    assert len(lines) <= 40
    assert any("more (--json lists them)" in line for line in lines)


def test_a_mismatch_on_all_ranks_is_one_line():
    bad = replace(GOOD, mismatches=mismatches())
    first = next(line for line in bad.text().splitlines() if line.startswith("    dtype"))
    assert first.startswith("    dtype on ranks 0-3: ")
