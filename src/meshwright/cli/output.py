"""What a command prints on stdout: a text for people, or with ``--json`` one object and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import click

from meshwright.render.text import printable


def emit(as_json: bool, answer: Any, text: Callable[[], str]) -> None:
    """Print ``answer`` (a mapping or a dataclass) as JSON, or the text; ``text`` is only called if it is wanted."""
    if as_json:
        print_json(answer)
    else:
        click.echo(printable(text()))


def tell(text: str) -> None:
    """Print what is no data (a warning, a mistake, the name of a file that was written) on stderr."""
    click.echo(printable(text), err=True)


def print_json(answer: Any) -> None:
    """One JSON object on stdout.

    Dataclasses become objects by their fields, tuples and sets lists, numpy numbers plain ones.

    Raises:
        ValueError: a NaN or an infinity, which JSON does not have: an error of ours, never the user's.
    """
    click.echo(json.dumps(plain(answer), allow_nan=False, indent=2))


def plain(value: Any) -> Any:
    """``value`` with nothing in it but what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if hasattr(value, "tolist"):  # numpy's arrays and numbers, without importing numpy for the test
        return plain(value.tolist())
    return value
