"""The rules: each is a YAML file under rules/ that says what it is, and a Python file of the same name that detects it.

Keys of the YAML, all of them required:

    code          stable name; the file's name with dashes
    kind          one of KINDS
    title         what it is called, in a few words
    headline      the finding's sentence; {ranks}, {group}, {collective} and the words of the hit are filled in
    anti_pattern  what in a program or a cluster makes it happen
    remedy        what to do about it; may hold the same placeholders
    fires         cases in which it must be found: {name, ranks, and one form of cases.FORMS}
    healthy       cases in which it must not: {name, and one form}

The Python file has ``detect(evidence) -> Iterable[Hit]``. The cases are run by the tests, and the page of rules is made of these files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal, get_args

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import Finding, ranks_text

Kind = Literal["mismatch", "hang", "slow", "doubt", "advice"]
"""mismatch: ranks did different things, whether or not that stopped them. hang: the job stands still or has died. slow: a step takes longer
than it must. doubt: something is wrong and the files do not show what. advice: nothing is wrong; it says what limits the answer."""

KINDS: tuple[str, ...] = get_args(Kind)
"""In the order in which findings are told."""

FAULTS = ("mismatch", "hang", "slow")

KEYS = {"code", "kind", "title", "headline", "anti_pattern", "remedy", "fires", "healthy"}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule; attributes as the keys of its YAML, and its detection."""

    code: str
    kind: Kind
    title: str
    headline: str
    anti_pattern: str
    remedy: str
    fires: tuple[dict[str, Any], ...]
    healthy: tuple[dict[str, Any], ...]
    detect: Callable[[Evidence], Iterable[Hit]]

    def finding(self, hit: Hit) -> Finding:
        """The hit in this rule's words."""
        words = {"ranks": ranks_text(hit.ranks), "group": hit.group, "collective": hit.collective} | hit.words
        title = hit.headline or self.headline.format(**words)
        return Finding(
            code=self.code, title=title[:1].upper() + title[1:], ranks=tuple(sorted(set(hit.ranks))), group=hit.group,
            collective=hit.collective, evidence=hit.evidence, remedy=self.remedy.format(**words), confidence=hit.confidence,
        )  # fmt: skip


@cache
def rulebook() -> tuple[Rule, ...]:
    """All rules, in order of kind and code."""
    names = sorted(
        entry.name.removesuffix(".yaml") for entry in files("meshwright.diagnose.rules").iterdir() if entry.name.endswith(".yaml")
    )
    return tuple(sorted(map(_load, names), key=lambda rule: (KINDS.index(rule.kind), rule.code)))


def _load(name: str) -> Rule:
    import yaml  # here: it is only needed to diagnose

    text = files("meshwright.diagnose.rules").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    assert set(values) == KEYS, f"{name}.yaml: {set(values) ^ KEYS}"
    assert values["code"] == name.replace("_", "-") and values["kind"] in KINDS, name
    for key in ("headline", "anti_pattern", "remedy"):
        values[key] = " ".join(values[key].split())
    cases = {key: tuple(values[key]) for key in ("fires", "healthy")}
    return Rule(**(values | cases), detect=import_module(f"meshwright.diagnose.rules.{name}").detect)
