"""The page of the rules of `diagnose`, from their files."""

from __future__ import annotations

from collections.abc import Iterator

import cog  # the module that cog gives to the code inside a page

from meshwright.diagnose.rulebook import KINDS, Rule, rulebook

HEADINGS = {
    "mismatch": "Ranks that did different things",
    "hang": "Jobs that stand still",
    "slow": "Steps that take longer than they must",
    "doubt": "Something is wrong, and the files do not show what",
    "advice": "What limits the answer",
}


def page() -> None:
    """Every rule, by kind."""
    assert tuple(HEADINGS) == KINDS
    lines = [line for kind in KINDS for line in _kind(kind)]
    cog.outl("\n".join(["", *lines]))


def _kind(kind: str) -> Iterator[str]:
    rules = [rule for rule in rulebook() if rule.kind == kind]
    if rules:
        yield f"## {HEADINGS[kind]}\n"
    for rule in rules:
        yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    yield f"### {rule.title}\n"
    yield f"`{rule.code}`: {rule.anti_pattern}\n"
    yield f"**Remedy.** {_generic(rule.remedy)}\n"
    yield f"Found in: {'; '.join(case['name'] for case in rule.fires)}. Not in: {'; '.join(case['name'] for case in rule.healthy)}.\n"


def _generic(remedy: str) -> str:
    """A remedy's placeholders as words."""
    words = {"ranks": "those ranks", "group": "the group", "collective": "the collective", "call": "the call"}
    for key, word in words.items():
        remedy = remedy.replace("{" + key + "}", word)
    return remedy.replace("{", "").replace("}", "")
