"""Write nested dictionaries as TOML 1.0, so that tomllib reads back what was written: every float to its last bit.

Only what our files hold: text, bool, int, finite float, arrays of these, tables and arrays of tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

__all__ = ["toml_text"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_text(values: Mapping[str, object]) -> str:
    """The TOML text of a dictionary. Raises ValueError for a value that TOML or this module cannot hold."""
    return "\n".join(_lines(values, ())) + "\n"


def _lines(values: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """A table's own values, then its tables: TOML reads a line as part of the table that was opened last."""
    for key, value in values.items():
        if not isinstance(value, Mapping) and not _is_table_array(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in values.items():
        inner = (*path, key)
        header = ".".join(map(_key, inner))
        if isinstance(value, Mapping):
            yield from ("", f"[{header}]")
            yield from _lines(value, inner)
        elif isinstance(value, list | tuple) and _is_table_array(value):
            for item in value:
                yield from ("", f"[[{header}]]")
                yield from _lines(item, inner)


def _is_table_array(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a number to be saved")
        return repr(value)  # the shortest text that reads back to the same float
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    raise ValueError(f"a {type(value).__name__} cannot be saved as TOML")


def _string(text: str) -> str:
    """A basic string: TOML wants control characters escaped, and knows no lone surrogates."""
    text.encode("utf-8")  # UnicodeEncodeError is a ValueError
    return '"' + "".join(_ESCAPES.get(c) or (c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in text) + '"'
