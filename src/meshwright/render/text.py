"""Tables as text, over rich (imported late: it takes longer to load than most questions to answer).

On a terminal a table takes the terminal's width and has bold headers; in a pipe, under NO_COLOR and in the docs it is
plain text of a fixed width, so that its lines can be compared.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 120
"""Columns of a table that does not go to a terminal."""


UNPRINTABLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of what a terminal would act on (escape sequences, text that runs backwards) or cannot show."""

STYLES = ("\x1b[1m", "\x1b[0m")
"""Bold on and off: all that our own tables send to a terminal beside text."""


def printable(text: str) -> str:
    """``text`` as it may go to a terminal: names and log lines of others come from anywhere.

    What a terminal would obey is written as Python would write it (``\\x1b``); newlines, tabs and our own bold stay.
    """
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(part if part in STYLES else _escaped(part) for part in re.split(r"(\x1b\[[01]m)", text))


def _escaped(text: str) -> str:
    from unicodedata import category

    return "".join(
        letter if letter in "\n\t" or category(letter) not in UNPRINTABLE else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its header, whether it is set to the right (numbers), and whether a long cell may be folded."""

    header: str
    right: bool = False
    fold: bool = True


def table(
    title: str, columns: Sequence[Column | str], rows: Iterable[Sequence[object]], *, notes: Sequence[str] = (), width: int | None = None
) -> str:
    """A table as text, without a newline at its end.

    Args:
        title: one line above it, "" for none.
        columns: a Column, or only its header.
        rows: cells of each row, in the columns' order; None is an empty cell.
        notes: lines below it.
        width: columns of text to use, in place of the terminal's or WIDTH.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shape = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        spec = Column(column) if isinstance(column, str) else column
        shape.add_column(Text(spec.header), justify="right" if spec.right else "left", overflow="fold", no_wrap=not spec.fold)
    for row in rows:
        # Text, not str: cells such as `bf16[B/dp, S]` are not rich's markup.
        shape.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    parts: list[object] = [Text(printable(title), style="bold"), Text("")] if title else []
    return _print([*parts, shape, *(Text(printable(note)) for note in notes)], width)


def facts(pairs: Iterable[tuple[str, str]], width: int = WIDTH) -> list[str]:
    """``name  text`` lines; long texts go on under their beginning."""
    told = list(pairs)
    indent = max((len(name) for name, _ in told), default=0) + 2
    return [line for name, text in told for line in wrapped(text, f"{name:<{indent}}", width)]


def wrapped(text: str, before: str = "", width: int = WIDTH) -> list[str]:
    """Lines of ``before`` and the text, which goes on under its beginning; what is longer than a line, such as a layout, stays whole."""
    from textwrap import wrap

    first, *rest = wrap(text, width - len(before), break_long_words=False, break_on_hyphens=False) or [""]
    return [before + first, *(" " * len(before) + line for line in rest)]


def _print(parts: Sequence[object], width: int | None) -> str:
    from io import StringIO

    from rich.console import Console

    terminal = sys.stdout.isatty()
    styled = terminal and "NO_COLOR" not in os.environ
    console = Console(
        file=StringIO(),
        width=width if width or terminal else WIDTH,
        force_terminal=styled,
        no_color=not styled,
        highlight=False,
        emoji=False,
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))
