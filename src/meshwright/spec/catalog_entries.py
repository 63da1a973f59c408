"""What ``meshwright catalog`` lists: the files of the catalog as they stand, sizes as numbers, models with what is asked of them first."""

from __future__ import annotations

import tomllib
from typing import Any

from meshwright.catalog import KINDS, Kind, list_names, path
from meshwright.errors import InputError, Mistake, did_you_mean
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model_summary import summarise
from meshwright.units import parse_bytes

__all__ = ["catalog_entries"]


def catalog_entries(kind: Kind, source: str = "catalog()") -> list[dict[str, Any]]:
    """The entries of one part of the catalog, in order of name.

    Raises:
        InputError: there is no such part; ``source`` is named.
    """
    if kind not in KINDS:
        raise InputError([Mistake(source, "kind", kind, ", ".join(KINDS), did_you_mean(str(kind), KINDS))])
    texts = {name: path(kind, name).read_text(encoding="utf-8") for name in list_names(kind)}
    return [
        {"name": name, **(_counts(name) if kind == "models" else {}), **_in_numbers(tomllib.loads(text))} for name, text in texts.items()
    ]


def _counts(name: str) -> dict[str, int]:
    """What is asked first of a model, and is not in its file."""
    summary = summarise(resolve_model(name))
    return {"parameters": summary.parameters, "active_parameters": summary.active_parameters}


def _in_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """A file may say ``memory_bytes = "80GiB"``; what is told of it, as text or JSON, starts from the number."""
    return {key: parse_bytes(value) if key.endswith("_bytes") and isinstance(value, str) else value for key, value in values.items()}
