"""Each rule fires on its own cases, with the ranks that they say, and is silent on its healthy ones."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.diagnose.cases import evidence_of
from meshwright.diagnose.judge import judge
from meshwright.diagnose.rulebook import FAULTS, Rule, rulebook

FIRING = [pytest.param(rule, case, id=f"{rule.code}: {case['name']}") for rule in rulebook() for case in rule.fires]
HEALTHY = [pytest.param(rule, case, id=f"{rule.code}: {case['name']}") for rule in rulebook() for case in rule.healthy]


@pytest.mark.parametrize(("rule", "case"), FIRING)
def test_a_rule_fires_on_its_cases(rule: Rule, case: dict[str, Any]) -> None:
    diagnosis = judge(evidence_of(case))
    headline = diagnosis.findings[0]
    assert (headline.code, headline.ranks) == (rule.code, tuple(case["ranks"])), diagnosis
    assert headline.evidence and headline.remedy and "{" not in headline.title + headline.remedy
    assert diagnosis.verdict == {"doubt": "inconclusive", "advice": "healthy"}.get(rule.kind, "fault")


@pytest.mark.parametrize(("rule", "case"), HEALTHY)
def test_a_rule_is_silent_on_healthy_cases(rule: Rule, case: dict[str, Any]) -> None:
    diagnosis = judge(evidence_of(case))
    assert rule.code not in {finding.code for finding in diagnosis.findings}


def test_every_rule_has_both_kinds_of_case_and_says_what_to_do() -> None:
    assert rulebook()
    for rule in rulebook():
        assert rule.fires and rule.healthy, rule.code
        assert all((rule.title, rule.headline, rule.anti_pattern, rule.remedy)), rule.code
    assert set(FAULTS) & {rule.kind for rule in rulebook()}


BEFORE = "dp.0 all_reduce(sum) float32[4] at train.py:10"


@pytest.mark.parametrize(
    ("first", "second", "code", "difference"),
    [
        ("all_reduce(sum) float32[8]", "broadcast float32[8] root 0", "op-mismatch", "the operation"),
        ("all_reduce(sum) float32[8]", "all_reduce(sum) float16[8]", "dtype-mismatch", "dtype"),
        ("all_reduce(sum) float32[8]", "all_reduce(sum) float32[9]", "shape-mismatch", "shape"),
        ("all_reduce(sum) float32[8]", "all_reduce(max) float32[8]", "reduce-op-mismatch", "the reduction"),
        ("broadcast float32[8] root 0", "broadcast float32[8] root 1", "root-mismatch", "the root"),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_where_as_many_did_one_thing_as_the_other_each_is_told(first: str, second: str, code: str, difference: str, size: int) -> None:
    """No majority, hence no culprit: who did what is said, and that nothing tells which is right."""
    half = range(size // 2, size)
    lists = {"all": [BEFORE, f"dp.0 {first} at train.py:20"]} | {rank: [BEFORE, f"dp.0 {second} at train.py:30"] for rank in half}
    headline = judge(evidence_of({"recordings": {"groups": {"dp.0": list(range(size))}} | lists})).findings[0]
    one, other = ("rank 0", "rank 1") if size == 2 else ("ranks 0 and 1", "ranks 2 and 3")
    assert (headline.code, headline.confidence) == (code, "medium")
    assert headline.title == (
        f"Call 1 of dp.0 was {first} on {one} and {second} on {other}: they differ in {difference}, and nothing here tells which is right"
    )


def test_the_only_other_rank_is_named() -> None:
    """The other group of the axis tells which of two ranks is wrong: the headline then holds it against that one rank."""
    right, wrong = "tp.{} all_gather float32[8] at layer.py:20", "tp.1 all_reduce(sum) float32[8] at layer.py:25"
    lists = {"all": [right.format(0), right.format(1)], 3: [wrong]}
    headline = judge(evidence_of({"recordings": {"groups": {"tp.0": [0, 1], "tp.1": [2, 3]}} | lists})).findings[0]
    assert headline.title == "Rank 3 made another operation than rank 2 as all_reduce 0 of tp.1"
