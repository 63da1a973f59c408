"""Models, devices and clusters as TOML files, each value with its source. This module only finds them.

``catalog/models/llama-3.1-70b.toml`` is the model ``llama-3.1-70b``; spec/ reads what is in the files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, get_args

from meshwright.errors import InputError, Mistake, did_you_mean

Kind = Literal["models", "clusters", "devices"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ROOT = Path(__file__).parent


def list_names(kind: Kind) -> tuple[str, ...]:
    """The names in one part of the catalog, numbers in them in order of size (``llama-2-7b`` before ``llama-2-13b``)."""
    return _names(ROOT / kind)


def path(kind: Kind, name: str, key: str = "") -> Path:
    """The file of one entry.

    Args:
        kind: the part of the catalog. name: an entry's name, in any case.
        key: what the user set to this name (``--cluster``), for the message.

    Raises:
        InputError: there is no such entry; lists the names and suggests near ones.
    """
    names = list_names(kind)
    if name.lower() in names:
        return ROOT / kind / f"{name.lower()}.toml"
    hint = did_you_mean(name.lower(), names) or f"`meshwright catalog {kind}` lists them"
    problem = f"is not in the catalog of {kind}"
    raise InputError([Mistake("catalog", key or kind, name, ", ".join(names), hint, problem)])


@cache
def _names(folder: Path) -> tuple[str, ...]:
    """The catalog does not change while a program runs."""
    return tuple(sorted((file.stem for file in folder.glob("*.toml")), key=_natural))


def _natural(name: str) -> list[tuple[int, float, str]]:
    """Sort key: the dash-separated parts, those that start with a number by its value."""
    from re import match

    found = [(match(r"[0-9]+(\.[0-9]+)?", part), part) for part in name.split("-")]
    return [(0, float(number[0]), part) if number else (1, 0.0, part) for number, part in found]
