"""A config as a dictionary, and what is wrong with its text though the framework's own reader takes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Mistake
from meshwright.lint.setup import Problem
from meshwright.spec.files import LARGEST_DEPTH, non_finite, parse_json, parse_toml

__all__ = ["read_config"]


def read_config(path: Path, suffix: str, text: str, legal: str) -> tuple[Mapping[str, Any], tuple[Problem, ...]]:
    """The values of a JSON, TOML or YAML text, and slips in it that its framework would read over.

    Raises:
        InputError: it is not of its language. A key that JSON or TOML gives twice is a mistake too: DeepSpeed refuses such a file
            (``dict_raise_error_on_duplicate_keys``, deepspeed/runtime/config_utils.py), as TOML's readers do.
    """
    if suffix == ".json":
        values = parse_json(text, str(path), finite=False)
        return values, tuple(_no_numbers(values, infinities=True))
    if suffix == ".toml":  # which has infinities: for "no limit"
        values = parse_toml(text, str(path))
        return values, tuple(_no_numbers(values, infinities=False))
    found, twice = _yaml(path, text, legal)
    values = found if isinstance(found, dict) else {}
    return values, (*_no_numbers(values, infinities=True), *twice)


def _no_numbers(values: Mapping[str, Any], infinities: bool) -> Iterator[Problem]:
    for key, value in non_finite(values):
        if infinities or math.isnan(value):
            yield Problem(
                code="no-number", title=f"`{key}` = {value} is no number, and counts as not said",
                remedy="a finite number, or leave the key out",
            )  # fmt: skip


def _yaml(path: Path, text: str, legal: str) -> tuple[object, list[Problem]]:
    import yaml

    try:
        depth = 0
        for token in yaml.scan(text):
            if isinstance(token, yaml.AliasToken):  # they can unfold to any size
                raise ValueError("it has aliases, which no config of Accelerate has")
            opens, closes = token.id.endswith("start>") or token.id in "[{", token.id == "<block end>" or token.id in "]}"
            depth += opens - closes
            if depth > LARGEST_DEPTH:
                raise ValueError("it is nested too deeply")
        return yaml.safe_load(text), list(_given_twice(yaml.compose(text, Loader=yaml.SafeLoader)))
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError) as error:
        raise InputError([Mistake(str(path), "", None, legal, problem=f"is not YAML ({str(error).splitlines()[0][:80]})")]) from None


def _given_twice(root: Any) -> Iterator[Problem]:
    """Of a key that stands twice in one mapping YAML's readers in Python take the last; nothing says so."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or isinstance(node.value, str):
            continue
        seen: dict[str, int] = {}
        for item in node.value:
            key, value = item if isinstance(item, tuple) else (None, item)
            waiting.append(value)
            if key is not None and isinstance(key.value, str):
                line = key.start_mark.line + 1
                if (first := seen.setdefault(key.value, line)) != line:
                    yield Problem(
                        code="given-twice", title=f"`{key.value}` is given twice, on lines {first} and {line}: the last counts",
                        remedy="leave one of them out",
                    )  # fmt: skip
