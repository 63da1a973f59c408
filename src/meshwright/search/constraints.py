"""What the user wants of a layout: ``tp<=8``, ``zero=3``, ``recompute!=full``. Several join with commas or by repetition."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from meshwright.errors import Mistakes, did_you_mean
from meshwright.search.space import Column
from meshwright.spec.layout import CP_KINDS, RECOMPUTES, SCHEDULES

NUMBERS = ("tp", "cp", "pp", "ep", "etp", "dp", "dp_replicate", "dp_shard", "mb", "virtual_stages", "zero")
WORDS: dict[str, tuple[str, ...]] = {
    "sp": ("on", "off"), "cp_kind": CP_KINDS, "schedule": SCHEDULES, "recompute": RECOMPUTES, "zero_variant": ("plain", "local", "keep"),
}  # fmt: skip

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "==": operator.eq, "=": operator.eq, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_TERM = re.compile(r"\s*([a-z_]+)\s*(<=|>=|!=|==|=|<|>)\s*([A-Za-z0-9_-]+)\s*")

Condition = Callable[[Column], Any]


def parse_constraints(texts: Iterable[str], file: str = "--constraint") -> Condition:
    """A mask over the layouts of a column (or one truth value for all of it).

    Raises:
        InputError: every term that is not of the form, with what would be.
    """
    conditions: list[Condition] = []
    with Mistakes.of(file) as mistakes:
        for term in (term for text in texts for term in text.split(",")):
            condition = _parse(term, mistakes)
            if condition is not None:
                conditions.append(condition)
    return lambda column: _all(condition(column) for condition in conditions)


def _all(masks: Iterable[Any]) -> Any:
    result: Any = True
    for mask in masks:
        result = result & mask
    return result


def _parse(term: str, mistakes: Mistakes) -> Condition | None:
    keys = (*NUMBERS, *WORDS)
    match = _TERM.fullmatch(term)
    if match is None:
        mistakes.add("", term, "KEY<=VALUE with KEY one of " + " ".join(keys), "e.g. tp<=8,pp=1,recompute=none", "is not a constraint")
        return None
    key, sign, text = match.groups()
    compare = _COMPARE[sign]
    if key in NUMBERS:
        if not text.isdigit() or len(text) > 9:
            mistakes.add(key, text, "a whole number")
            return None
        value = int(text)
        return lambda column: compare(getattr(column, key), value)
    if key not in WORDS:
        mistakes.add(key, text, " ".join(keys), did_you_mean(key, keys), "is not a key that can be constrained")
        return None
    if text not in WORDS[key] or sign not in ("=", "==", "!="):
        mistakes.add(key, f"{sign}{text}", f"{key}=VALUE or {key}!=VALUE with VALUE one of " + " ".join(WORDS[key]))
        return None
    return lambda column: compare(_word(column, key), text)


def _word(column: Column, key: str) -> str:
    value = getattr(column, key)
    if key == "sp":
        return "on" if value else "off"
    return "plain" if key == "zero_variant" and not value else str(value)
