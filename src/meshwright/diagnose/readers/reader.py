"""What a reader is, and how files go through the readers."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meshwright.diagnose.source import Source, Unreadable, sources

DAMAGE = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""What a reader may trip over in a file that is not what it says it is."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One kind of file.

    Attributes:
        kind: what it is called, for one and for several: ("recording", "recordings").
        recognises: whether a file is of this kind, by its head.
        read: the pieces of evidence in it; raises Unreadable.
    """

    kind: tuple[str, str]
    recognises: Callable[[Source], bool]
    read: Callable[[Source], Iterable[object]]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """pieces: of evidence. problems: (file, what is wrong with it) of each that was left out. read: how many files of which kind."""

    pieces: tuple[object, ...]
    problems: tuple[tuple[str, str], ...]
    read: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each file that was left out."""
        return tuple(f"{name}: {problem}" for name, problem in self.problems)


def gather(paths: Sequence[Path], readers: Sequence[Reader]) -> Gathered:
    """Read everything below ``paths``. What is torn, empty, foreign or hostile becomes a note."""
    with _without_collector():
        return _gather(paths, readers)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of small objects are made and all are kept: Python's cycle collector would walk them again and again."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _gather(paths: Sequence[Path], readers: Sequence[Reader]) -> Gathered:
    pieces: list[object] = []
    problems: list[tuple[str, str]] = []
    counts: Counter[tuple[str, str]] = Counter()
    for source in sources(paths):
        if isinstance(source, tuple):
            problems.append(source)
            continue
        try:
            reader = _reader_of(source, readers)
            pieces.extend(reader.read(source))
        except Unreadable as problem:
            problems.append((source.name, str(problem)))
        except DAMAGE as error:
            problems.append((source.name, f"is damaged ({type(error).__name__})"))
        else:
            counts[reader.kind] += 1
    read = tuple(f"{count:,} {one if count == 1 else several}" for (one, several), count in counts.items())
    told = tuple((_one_line(name), _one_line(problem)) for name, problem in problems)
    return Gathered(pieces=tuple(pieces), problems=told, read=read)


def _reader_of(source: Source, readers: Sequence[Reader]) -> Reader:
    if not source.head:
        raise Unreadable("is empty: what was to write it ended before it had anything to write")
    for reader in readers:
        if reader.recognises(source):
            return reader
    raise Unreadable("is of no kind that diagnose knows")


def _one_line(text: str) -> str:
    """Names and texts of files may hold anything."""
    shown = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= 300 else f"{shown[:297]}..."
