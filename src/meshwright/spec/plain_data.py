"""Frozen dataclasses as nested tables and back, by their type annotations: what a plan file holds is what the dataclass has.

A field that is None, "" or () is left out of the table, and a field that is absent in a table is None, "" or (): never
the dataclass's default, which may be another one in the version that reads the file.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from meshwright.spec.tables import Table

__all__ = ["from_table", "to_table"]

T = TypeVar("T")

PAIRS = "pairs"


def to_table(instance: Any, special: dict[type, Callable[[Any], Any]] | None = None) -> dict[str, Any]:
    """The fields of a dataclass instance as a table; tuples of (key, value) pairs become a table of their own.

    special: for a field that is a tuple of this type, what makes the array.
    """
    hints = get_type_hints(type(instance))
    table = {}
    for field in dataclasses.fields(instance):
        value = _plain(getattr(instance, field.name), hints[field.name], special or {})
        if value not in (None, "", [], {}):
            table[field.name] = value
    return table


def _plain(value: Any, hint: Any, special: dict[type, Callable[[Any], Any]]) -> Any:
    kind, inner = _kind_of(hint)
    if value is None:
        return None
    if dataclasses.is_dataclass(value):
        return to_table(value, special)
    if kind == PAIRS:
        return {_printable(key): _plain(item, Any, special) for key, item in value}
    if kind is tuple and inner in special:
        return special[inner](value)
    if isinstance(value, tuple):
        return [_plain(item, inner, special) for item in value]
    if isinstance(value, str):
        return _printable(value)
    return float(value) if kind is float else value


def from_table(cls: type[T], table: Table, special: dict[type, Callable[[Table, str], Any]] | None = None) -> T | None:
    """An instance of ``cls``; None, with the mistakes noted in the table, where its values are not legal.

    Whole numbers are from 1, or from 0 where the field's default is 0; other numbers are not negative. ``special`` is the
    inverse of ``to_table``'s: it gets the table and the key, and notes its own mistakes.
    """
    before = len(table.mistakes.found)
    hints = get_type_hints(cls)
    values = {
        field.name: _read(table, field, hints[field.name], special or {})
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
    }
    table.refuse_unread()
    return cls(**values) if len(table.mistakes.found) == before else None


def _read(table: Table, field: dataclasses.Field[Any], hint: Any, special: dict[type, Callable[[Table, str], Any]]) -> Any:
    key = field.name
    kind, inner = _kind_of(hint)
    if kind is None and key not in table:
        return None
    if kind is None:
        kind, inner = _kind_of(inner)
    if kind is tuple:
        return _read_tuple(table, key, inner, special)
    if kind == PAIRS:
        return _read_pairs(table, key)
    if dataclasses.is_dataclass(kind):
        nested = table.table(key)
        return from_table(kind, nested, special) if nested is not None and isinstance(kind, type) else None
    readers: dict[Any, Callable[[], Any]] = {
        Literal: lambda: table.choice(key, inner),
        bool: lambda: table.flag(key),
        int: lambda: table.integer(key, low=0 if field.default == 0 else 1),
        float: lambda: table.number(key, low=0.0),
        str: lambda: table.text(key, "", multiline=True),
    }
    return readers[kind]()


def _read_tuple(table: Table, key: str, inner: Any, special: dict[type, Callable[[Table, str], Any]]) -> Any:
    if inner in special:
        return special[inner](table, key)
    if inner is int:
        return table.integers(key, ())
    if dataclasses.is_dataclass(inner) and isinstance(inner, type):
        return tuple(from_table(inner, item, special) for item in table.tables(key))
    return table.texts(key, ())


def _read_pairs(table: Table, key: str) -> tuple[tuple[str, Any], ...]:
    nested = table.table(key, required=False)
    return () if nested is None else tuple((name, nested.scalar(name)) for name in nested.own_keys())


def _kind_of(hint: Any) -> tuple[Any, Any]:
    """What a type annotation asks for: (type, item type), (None, X) for ``X | None``, (Literal, its values)."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        others = [arg for arg in args if arg is not types.NoneType]
        return (None, others[0]) if len(others) < len(args) else (hint, None)
    if origin is Literal:
        return Literal, args
    if origin is tuple:
        pairs = get_origin(args[0]) is tuple
        return (PAIRS, None) if pairs else (tuple, args[0])
    return hint, None


def _printable(text: str) -> str:
    """Names come from files and folders, which may hold anything; a plan file only holds what it reads back."""
    if not text.strip():
        return ""
    return text if text.replace("\n", "").isprintable() else text.encode("unicode_escape").decode("ascii")
