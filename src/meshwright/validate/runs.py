"""The rows of a file of measured runs, as they stand there, and the sources that they come from.

Two forms are read, told apart by their columns: published runs (one column per degree, docs/validation.md lists them), and the
user's own (model, cluster, layout as on the command line).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import InputError, Mistake, Mistakes
from meshwright.spec.files import read_text

__all__ = ["OWN_COLUMNS", "PUBLISHED_COLUMNS", "Run", "Unjudgeable", "read_runs"]

PUBLISHED_COLUMNS = ("id", "kind", "model", "layers", "hidden", "seq_len", "gpu", "gpus", "global_batch")
"""Columns without which a file is not one of published runs."""

OWN_COLUMNS = ("id", "model", "cluster", "layout", "seq", "batch")
"""Columns without which a file is not one of the user's own runs; beside them ``step_s``, ``tokens_per_s_per_gpu``, ``memory_gib``."""

LARGEST_ROWS = 100_000
"""A longer table is not a list of runs."""


SMALLEST, LARGEST = 1e-18, 1e18
"""No figure of a run lies beyond; ratios and squares of these stay finite."""


THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
"""A number whose thousands are set apart."""


class Unjudgeable(Exception):
    """A row that no estimate can be compared with; the message says why."""


@dataclass(frozen=True)
class Run:
    """One row: its cells by column. An empty cell and a missing column are the same."""

    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """The cell, "" if it is empty."""
        return (self.cells.get(column) or "").strip()

    @property
    def id(self) -> str:
        return self.text("id")

    @property
    def published(self) -> bool:
        """Whether the row has the columns of published runs."""
        return "layout" not in self.cells

    @property
    def source(self) -> str:
        """What is left out as a whole when the model is judged, and calibrated as a whole: one publisher's runs.

        Published ids are a prefix and a running number; tables of one paper (``seqsel-t4-001``) are one source. A user's own file
        may have a column ``source``.
        """
        if not self.published:
            return self.text("source") or "own"
        return re.split(r"-(?:t\d|fig|\d)", self.id)[0] or self.text("source")

    def whole(self, column: str, default: int | None = None) -> int:
        """A whole number of 1 or more; ``default`` for an empty cell.

        Raises:
            Unjudgeable: the cell is empty and there is no default, or it is no such number.
        """
        text = self.text(column)
        if not text and default is not None:
            return default
        value = self.number(column)
        if value != int(value) or value < 1:
            raise Unjudgeable(f"{column} = {text} is not a whole number")
        return int(value)

    def number(self, column: str) -> float:
        """A positive number. Raises Unjudgeable where there is none."""
        text = self.text(column)
        if not text:
            raise Unjudgeable(f"{column} is not given")
        try:
            value = float(text.replace(",", "") if THOUSANDS.fullmatch(text) else text)
        except ValueError:
            value = -1.0
        if not SMALLEST < value < LARGEST:
            raise Unjudgeable(f"{column} = {text[:40]} is not a positive number")
        return value

    def has(self, column: str) -> bool:
        return bool(self.text(column))

    def says(self, pattern: str, *columns: str) -> bool:
        """Whether one of the columns has the pattern, in any case of letters."""
        return any(re.search(pattern, self.text(column), re.IGNORECASE) for column in columns)


def read_runs(path: Path) -> list[Run]:
    """Every row of a file.

    Raises:
        InputError: it is no table with the columns of either form; two rows have one id.
    """
    text = read_text(path, "a table of runs (CSV)")
    try:
        table = csv.DictReader(io.StringIO(text), strict=True)
        columns, rows = table.fieldnames or (), list(table)
    except csv.Error as error:
        raise InputError([Mistake(str(path), "", None, "comma-separated values", problem=f"is not a table: {error}")]) from None
    _check_columns(path, list(columns))
    with Mistakes.of(str(path)) as mistakes:
        if not rows:
            mistakes.add("", None, "one row for each run", problem="has no rows below its columns")
        if len(rows) > LARGEST_ROWS:
            mistakes.add("", len(rows), f"up to {LARGEST_ROWS} rows")
        _check_ids(rows, mistakes)
    return [Run({str(key): value for key, value in row.items() if isinstance(value, str)}) for row in rows]


def _check_columns(path: Path, columns: list[str]) -> None:
    form = OWN_COLUMNS if "layout" in columns else PUBLISHED_COLUMNS
    missing = [column for column in form if column not in columns]
    if missing:
        legal = f"{','.join(PUBLISHED_COLUMNS)} (published runs), or {','.join(OWN_COLUMNS)} (your own)"
        raise InputError([Mistake(str(path), "columns", ",".join(columns)[:80] or None, legal, problem=f"lack {', '.join(missing)}")])


def _check_ids(rows: Iterable[Mapping[str, str]], mistakes: Mistakes) -> None:
    seen: set[str] = set()
    for number, row in enumerate(rows, start=2):
        name = (row.get("id") or "").strip()
        if not name or name in seen:
            problem = "is given twice" if name else "is empty"
            mistakes.add(f"id in row {number}", name or None, "a name of its own for each run", problem=problem)
        seen.add(name)
