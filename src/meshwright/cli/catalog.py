"""``meshwright catalog``: what models, clusters and devices are built in, with their main figures."""

from __future__ import annotations

import re
from typing import Any

import click

from meshwright.catalog import KINDS, Kind
from meshwright.cli.options import OneOf, command
from meshwright.cli.output import emit

MODEL_COLUMNS = ("name", "parameters", "active_parameters", "layers", "hidden_size", "ffn_size", "vocab_size", "max_positions")
MAX_COLUMNS = 8
"""Figures that fit on a line; --json has all of them."""


@command()
@click.argument("kind", type=OneOf("KIND", KINDS), metavar="models|clusters|devices")
def catalog(kind: Kind, as_json: bool) -> None:
    """List the built-in models, clusters or devices."""
    from meshwright.spec.catalog_entries import catalog_entries

    entries = catalog_entries(kind, "command line")
    emit(as_json, {kind: entries}, lambda: _text(kind, entries))


def _text(kind: Kind, entries: list[dict[str, Any]]) -> str:
    from meshwright.render.text import Column, table

    keys = list(MODEL_COLUMNS) if kind == "models" else _columns(entries)
    rows = [[_cell(key, entry.get(key)) for key in keys] for entry in entries]
    columns = [Column(_header(key), right=any(_is_number(entry.get(key)) for entry in entries)) for key in keys]
    return table(f"{len(entries)} {kind}", columns, rows)


def _columns(entries: list[dict[str, Any]]) -> list[str]:
    """The name, then the keys that most entries have; long prose and the sources are left to --json."""
    counts: dict[str, int] = {}
    for entry in entries:
        for key, value in entry.items():
            prose = isinstance(value, str) and len(value) > 40
            if _cell(key, value) and not prose:
                counts[key] = counts.get(key, 0) + 1
    keys = [key for key, count in counts.items() if 2 * count > len(entries) and key not in ("name", "source")]
    return ["name", *keys[: MAX_COLUMNS - 1]]


def _header(key: str) -> str:
    """``hbm_bandwidth_bytes_per_s`` -> ``hbm bandwidth``: the cells carry the unit."""
    return re.sub("(_bytes)?(_per_s)?$", "", key, count=1).replace("_", " ")


def _cell(key: str, value: Any) -> str:
    """A value for people; its unit is the ending of its key."""
    from meshwright.units import format_count, format_memory, format_rate, format_seconds

    if isinstance(value, dict):
        return _by_value({name: _cell(key, item) for name, item in value.items() if _is_number(item)})
    if key == "layers":
        return ", ".join(value)
    if isinstance(value, list):
        return " < ".join(_tier(item) for item in value if isinstance(item, dict))
    if not _is_number(value):
        return "" if value is None else str(value)
    formats = {
        "bytes_per_s": format_rate, "flops_per_s": format_count, "_bytes": format_memory, "_s": format_seconds, "parameters": format_count,
    }  # fmt: skip
    return next((show(value) for ending, show in formats.items() if key.endswith(ending)), f"{value:,}")


def _by_value(cells: dict[str, str]) -> str:
    """``bf16/float16 989T, fp8 1979T``: names with the same value share it."""
    names: dict[str, list[str]] = {}
    for name, cell in cells.items():
        names.setdefault(cell, []).append(name)
    return ", ".join(f"{'/'.join(same)} {cell}" for cell, same in names.items())


def _tier(tier: dict[str, Any]) -> str:
    """``nvlink 8 x 450 GB/s``; the outermost tier holds any number."""
    key = "bandwidth_bytes_per_s"
    size = f"{tier['size']} x" if "size" in tier else ""
    return " ".join(filter(None, [str(tier.get("name", "")), size, _cell(key, tier.get(key))]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
