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
