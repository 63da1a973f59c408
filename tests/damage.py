"""Seeded damage to the text and to the values of an input file, for fuzz tests."""

from __future__ import annotations

import copy
import math
import random

NASTY = (
    0, 1, -1, 2, 3, 7, 8, 12, 10**8, 10**8 + 1, 2**63, -(2**63), 10**400, 16**5000, 0.0, -0.0, 0.5, 1.5, 1e-320, 1e308, -1e308,
    math.nan, math.inf, -math.inf, True, False, None, "", " ", "x", "8", "1e9", "80GiB", "nan", "\0", "\x1b[31m", "\ud800", "é" * 50,
    "x" * 10**4, [], [1], [[]], [{}], {}, {"x": 1}, {"": {}}, "h100-sxm", "h100-smx", 450e9, 1e-6, [None], object,
)  # fmt: skip
PIECES = ("=", "[", "]", "[[", '"', "'", "\n", ".", "nan", "inf", "-", "1e999", "9" * 5000, "0x" + "f" * 5000, "{", "}", ",", "#",
          "true", "\0", "\ufeff", "\ud7ff", "size = 8", "x = ", "[[tiers]]", "[device]", "1979-05-27", "[" * 2000, "a." * 500)  # fmt: skip


def mutate_values(values: dict, rng: random.Random) -> dict:
    """A deep copy with one to three places changed: a nasty value, a deleted, renamed, added or copied key."""
    values = copy.deepcopy(values)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(values))
        if not places:
            break
        parent, key = rng.choice(places)
        action = rng.randrange(6)
        if action <= 2:
            parent[key] = copy.deepcopy(rng.choice(NASTY))
        elif action == 3:
            del parent[key]
        elif action == 4 and isinstance(parent, dict):
            parent[rng.choice(("", "x", f"{key}s", key[:-1], "\ud800", "name", "size"))] = parent.pop(key)
        else:
            other, other_key = rng.choice(places)
            parent[key] = copy.deepcopy(other[other_key]) if other_key in _keys(other) else 1
    return values


def mutate_text(text: str, rng: random.Random) -> str:
    """Text with one to three of: a piece put in, a stretch cut out, a character changed, the end lost, two lines swapped."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(text) + 1)
        action = rng.randrange(5)
        if action == 0:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif action == 1:
            text = text[:at] + text[at + rng.randrange(1, 30) :]
        elif action == 2:
            text = text[:at] + chr(rng.randrange(1, 256)) + text[at + 1 :]
        elif action == 3 and rng.random() < 0.2:
            text = text[:at]
        else:
            lines = text.split("\n")
            a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[a], lines[b] = lines[b], lines[a]
            text = "\n".join(lines)
    return text


def _keys(parent: object) -> object:
    return parent if isinstance(parent, dict) else range(len(parent))  # type: ignore[arg-type]


def _places(value: object):
    """(container, key) of everything inside nested dictionaries and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
