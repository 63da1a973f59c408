"""Lists for the reference of models, from the tables that the readers themselves use."""

from __future__ import annotations

import cog  # the module that cog gives to the code inside a page

from meshwright.catalog import list_names
from meshwright.spec.huggingface import FAMILIES, read_keys
from meshwright.spec.huggingface.features import FEATURES
from meshwright.spec.huggingface.irrelevant import BASE
from meshwright.spec.huggingface.stored_dtype import QUANT_METHODS
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model_summary import summarise
from meshwright.units import format_count


def catalog_table() -> None:
    """Every model of the catalog with its counts and its source."""
    _table(["name", "parameters", "active", "layers", "from"], (_row(name) for name in list_names("models")))


def family_table() -> None:
    """The keys that each family reads, other names of them, and those that it passes over besides the common ones."""
    rows = []
    for name, family in FAMILIES.items():
        aliases = ", ".join(f"`{alias}` for `{key}`" for alias, key in family.aliases.items())
        passed = [key for key in family.irrelevant if key not in BASE]
        rows.append([f"`{name}`", _keys(read_keys(name)), aliases, _keys(sorted(passed))])
    _table(["`model_type`", "read", "other names", "changes nothing"], rows)


def common_keys() -> None:
    """Keys that change nothing in any family."""
    cog.outl("\n" + _keys(sorted(BASE)) + "\n")


def feature_table() -> None:
    """Keys that ask for a part that is not planned."""
    _table(["keys", "ask for"], ([_keys(feature.keys), feature.what] for feature in FEATURES))


def quant_methods() -> None:
    """The methods of ``quantization_config`` that are understood."""
    cog.outl("\n" + _keys(QUANT_METHODS) + "\n")


def _row(name: str) -> list[str]:
    summary, model = summarise(resolve_model(name)), resolve_model(name)
    active = "" if summary.active_parameters == summary.parameters else format_count(summary.active_parameters)
    return [f"`{name}`", format_count(summary.parameters), active, ", ".join(summary.layers), model.source]


def _keys(keys: object) -> str:
    return " ".join(f"`{key}`" for key in keys)  # type: ignore[attr-defined]


def _table(head: list[str], rows: object) -> None:
    cog.outl("\n" + "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n")  # type: ignore[misc]
