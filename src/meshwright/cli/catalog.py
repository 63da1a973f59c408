"""``meshwright catalog``: what models, clusters and devices are built in, with their main figures."""

from __future__ import annotations

from typing import Any

import click

from meshwright.catalog import KINDS, Kind
from meshwright.cli.options import OneOf, command
from meshwright.cli.output import emit

MAX_COLUMNS = 8
"""Figures that fit on a line; --json has all of them."""


@command()
@click.argument("kind", type=OneOf("KIND", KINDS), metavar="models|clusters|devices")
def catalog(kind: Kind, as_json: bool) -> None:
    """List the built-in models, clusters or devices."""
    entries = _read(kind)
    emit(as_json, {kind: entries}, lambda: _text(kind, entries))


def _read(kind: Kind) -> list[dict[str, Any]]:
    import tomllib

    from meshwright.catalog import list_names, path

    return [{"name": name, **tomllib.loads(path(kind, name).read_text(encoding="utf-8"))} for name in list_names(kind)]


def _text(kind: Kind, entries: list[dict[str, Any]]) -> str:
    from meshwright.render.text import Column, table

    keys = _columns(entries)
    rows = [[_cell(key, entry.get(key)) for key in keys] for entry in entries]
    columns = [Column(key.replace("_", " "), right=any(_is_number(entry.get(key)) for entry in entries)) for key in keys]
    return table(f"{len(entries)} {kind}", columns, rows)


def _columns(entries: list[dict[str, Any]]) -> list[str]:
    """The name, then the keys that most entries have, short prose left out."""
    counts: dict[str, int] = {}
    for entry in entries:
        for key, value in entry.items():
            if _cell(key, value) and len(_cell(key, value)) <= 40:
                counts[key] = counts.get(key, 0) + 1
    keys = [key for key, count in counts.items() if 2 * count > len(entries) and key not in ("name", "source")]
    return ["name", *keys[: MAX_COLUMNS - 1]]


def _cell(key: str, value: Any) -> str:
    """A value for people; its unit is the ending of its key."""
    from meshwright.units import format_count, format_memory, format_rate, format_seconds

    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(key, item)}" for name, item in value.items() if _is_number(item))
    if isinstance(value, list):
        return " < ".join(str(item.get("name", "")) for item in value if isinstance(item, dict))
    if not _is_number(value):
        return "" if value is None else str(value)
    formats = {"bytes_per_s": format_rate, "flops_per_s": format_count, "_bytes": format_memory, "_s": format_seconds}
    return next((show(value) for ending, show in formats.items() if key.endswith(ending)), f"{value:,}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
