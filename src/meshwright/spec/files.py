"""Read a TOML or JSON file that a user wrote: a dictionary comes back, or an InputError that says what is wrong with it.

Typed reading of the dictionary's keys is in spec/tables.py. Writing is here too, since what may be wrong with a path is
the same: a file is written whole or not at all.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from meshwright.errors import InputError, Mistake

__all__ = ["non_finite", "open_regular", "parse_json", "parse_toml", "read_json", "read_text", "read_toml", "write_text"]

LARGEST_FILE_BYTES = 16 << 20
"""Hand-written inputs and Hugging Face configs stay below 1 MiB; what is larger is another kind of file."""

LARGEST_DEPTH = 50
"""Levels inside a JSON object; Hugging Face's configs have six. What is deeper would exhaust the stack somewhere."""


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file. Raises InputError: it cannot be read, or is not TOML."""
    return parse_toml(read_text(path, "a TOML file"), str(path))


def read_json(path: Path, *, finite: bool = True) -> dict[str, object]:
    """The object of a JSON file. Raises InputError: it cannot be read, is not JSON, or not an object; see parse_json."""
    return parse_json(read_text(path, "a JSON file"), str(path), finite=finite)


def parse_toml(text: str, file: str) -> dict[str, object]:
    """TOML text as a dictionary; ``file`` is named in mistakes."""
    values: dict[str, object] = _parse(tomllib.loads, text, file, "TOML")
    return values


def parse_json(text: str, file: str, *, finite: bool = True) -> dict[str, object]:
    """JSON text as a dictionary; a key that is given twice is a mistake as well.

    NaN and Infinity, which Python's JSON has, are mistakes too, unless a caller with ``finite=False`` looks for them among
    others.
    """
    values = _parse(_loads_json, text, file, "JSON")
    if not isinstance(values, dict):
        raise _mistake(file, "a JSON object: { ... }", f"is JSON, but holds {_kind(values)}")
    if any(depth > LARGEST_DEPTH for _, _, depth in _walk(values)):
        raise _mistake(file, f"at most {LARGEST_DEPTH} levels", "is nested too deeply")
    wrong = non_finite(values) if finite else []
    if wrong:
        raise InputError([Mistake(file, key, value, "a finite number", problem="is not a number of JSON") for key, value in wrong])
    return values


def non_finite(value: object) -> list[tuple[str, float]]:
    """Every NaN and infinity inside a value, with its dotted key."""
    return [(key, inner) for key, inner, _ in _walk(value) if isinstance(inner, float) and not math.isfinite(inner)]


def _walk(value: object) -> Iterator[tuple[str, object, int]]:
    """Everything inside a JSON value, in order, with its dotted key and how deep it lies."""
    waiting: list[tuple[str, object, int]] = [("", value, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        yield key, value, depth
        inner: list[tuple[str, object]] = []
        if isinstance(value, dict):
            inner = [(f"{key}.{name}" if key else str(name), item) for name, item in value.items()]
        elif isinstance(value, list):
            inner = [(f"{key}[{index}]", item) for index, item in enumerate(value)]
        waiting += [(name, item, depth + 1) for name, item in reversed(inner)]


OWN_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Names of streams that are open already, which a shell makes of ``<(command)``: their pipes have somebody who writes."""


def open_regular(path: Path) -> IO[bytes]:
    """A file's bytes. What is no file is not waited for: a pipe without a writer would block for ever, a device never end.

    Raises:
        OSError: it cannot be opened, or is neither a file nor a stream that this process was given.
        ValueError: a NUL byte in the name.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{path} is a folder")
        if str(path).startswith(OWN_STREAMS) and not stat.S_ISREG(mode):
            os.set_blocking(handle, True)
        elif not stat.S_ISREG(mode):
            raise OSError("it is a pipe, a socket or a device, and no regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_text(path: Path, legal: str) -> str:
    """The text of a UTF-8 file. Raises InputError where there is none; ``legal`` says what the file should be."""
    try:
        with open_regular(path) as stream:
            data = stream.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _mistake(str(path), legal, "does not exist", _hint_missing(path)) from None
    except IsADirectoryError:
        raise _mistake(str(path), legal, "is a folder") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise _mistake(str(path), legal, f"cannot be read: {reason}") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise _mistake(str(path), f"at most {LARGEST_FILE_BYTES >> 20} MiB", "is too large", "is it the right file?")
    try:
        return data.decode("utf-8-sig")  # editors on Windows write a byte order mark
    except UnicodeDecodeError as error:
        raise _mistake(str(path), legal, f"is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None


def write_text(path: Path, text: str) -> None:
    """Write a file whole: into a new file beside it, which then takes its name. Raises InputError where that cannot be.

    A device or a pipe (``/dev/null``) cannot be replaced: the text goes into it.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        target = Path(os.path.realpath(path))  # through a symbolic link, which stays
        if target.is_dir():
            raise IsADirectoryError
        _replace(target, text)
    except FileNotFoundError:
        raise _mistake(str(path), "a file in a folder that exists", f"cannot be written: there is no folder {path.parent}") from None
    except IsADirectoryError:
        raise _mistake(str(path), "the name of a file", "is a folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _mistake(str(path), "a file that can be written", f"cannot be written: {reason}") from None


def _replace(target: Path, text: str) -> None:
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, target)
    except BaseException:
        try:
            part.unlink()
        except OSError:
            pass  # it was never made; what is wrong with the path is told by the first error
        raise


def _parse(loads: Callable[[str], Any], text: str, file: str, language: str) -> Any:
    try:
        return loads(text)
    except RecursionError:
        raise _mistake(file, language, "is nested too deeply") from None
    except ValueError as error:  # syntax, and numbers of thousands of digits
        raise _mistake(file, language, f"is not {language}: {error}") from None


def _loads_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key!r} is given twice")
        values[key] = value
    return values


def _kind(value: object) -> str:
    return {list: "an array", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _hint_missing(path: Path) -> str:
    """The nearest name beside it, if there is one."""
    from difflib import get_close_matches

    try:
        near = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=1)
    except (OSError, ValueError):
        return ""
    return f"did you mean `{path.parent / near[0]}`?" if near else ""


def _mistake(file: str, legal: str, problem: str, hint: str = "") -> InputError:
    return InputError([Mistake(file, "", None, legal, hint, problem)])
