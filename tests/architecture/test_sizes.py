"""Files and functions stay small, and no file is called after nothing in particular."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from shared_data import ROOT

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

LONG_FILES: dict[str, str] = {}
"""Files of src/ that may be longer, each with its reason."""

LONG_FUNCTIONS: dict[str, str] = {}
"""Functions (``file.py:name``) that may be longer, each with its reason."""

MEANINGLESS = {"utils", "util", "core", "common", "base", "helpers", "helper", "misc"}

FILES = sorted((ROOT / "src" / "meshwright").rglob("*.py"))


def name_of(file: Path) -> str:
    return file.relative_to(ROOT / "src" / "meshwright").as_posix()


def long_functions(source: str) -> Iterator[str]:
    """Functions whose body, docstring left out, is longer than MAX_FUNCTION_LINES."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
            if (node.end_lineno or 0) - first.lineno + 1 > MAX_FUNCTION_LINES:
                yield node.name


def test_only_listed_files_are_long():
    long = {name_of(file) for file in FILES if len(file.read_text().splitlines()) > MAX_FILE_LINES}
    assert long == set(LONG_FILES)
    assert all(LONG_FILES.values())


def test_only_listed_functions_are_long():
    long = {f"{name_of(file)}:{function}" for file in FILES for function in long_functions(file.read_text())}
    assert long == set(LONG_FUNCTIONS)
    assert all(LONG_FUNCTIONS.values())


def test_a_long_function_would_be_seen():
    body = "    x = 1\n" * (MAX_FUNCTION_LINES + 1)
    assert list(long_functions(f'def f():\n    """Doc."""\n{body}')) == ["f"]
    assert list(long_functions(f"def f():\n{body[: -len('    x = 1') - 1]}")) == []


def test_no_file_is_called_after_nothing_in_particular():
    assert FILES
    assert [name_of(file) for file in FILES if MEANINGLESS & {file.stem, *file.relative_to(ROOT).parent.parts}] == []
