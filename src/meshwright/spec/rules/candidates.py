"""Which values of a key would be legal: tried with the very rules that refused the one given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from meshwright.spec.layout import Layout
from meshwright.spec.rules.rule import Case, Rule

SHOWN = 10
"""Values that a message lists before it says "... and the last"."""


def legal_values(case: Case, key: str, rules: Sequence[Rule]) -> str:
    """The values of ``key`` for which all of ``rules`` about it hold while the rest of the layout stays, in words."""
    about = [rule for rule in rules if rule.key == key]
    tried = ((value, _with(case, key, value)) for value in _candidates(case, key))
    values = [value for value, other in tried if all(rule.holds(other) for rule in about)]
    if not values:
        return f"no value of {key} with the rest of this layout"
    return in_words(values)


def in_words(values: Sequence[int]) -> str:
    """``1, 2, 4 or 8``; long lists are cut in the middle."""
    words = [str(value) for value in values]
    if len(words) > SHOWN:
        words = [*words[: SHOWN - 1], "...", words[-1]]
        return ", ".join(words)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _candidates(case: Case, key: str) -> Iterable[int]:
    """What is worth trying: other values fail for reasons of arithmetic."""
    moe = case.model.moe
    ranges: dict[str, Callable[[], Iterable[int]]] = {
        "tp": lambda: divisors(case.num_heads),
        "cp": lambda: divisors(case.sequence) if case.sequence else (1,),
        "pp": lambda: range(1, case.model.num_layers + 1),
        "ep": lambda: divisors(moe.num_experts) if moe else (1,),
        "etp": lambda: divisors(moe.expert_ffn_size) if moe else (case.layout.tp,),
    }
    return (value for value in ranges[key]() if case.gpus is None or value <= case.gpus)


def _with(case: Case, key: str, value: int) -> Case:
    """The case with another degree; what follows from the degree (etp from tp, ulysses from cp) follows it."""
    layout: Layout = case.layout
    change: dict[str, Any] = {key: value}
    if key == "tp" and layout.etp == layout.tp:
        change["etp"] = value
    if key == "cp" and layout.cp_kind == "ulysses":
        change["ulysses"] = value
    if key == "cp" and layout.cp_kind == "usp":
        change["ulysses"] = layout.ulysses if value % layout.ulysses == 0 else value
    return replace(case, layout=replace(layout, **change))


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
