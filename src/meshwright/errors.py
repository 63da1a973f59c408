"""The exceptions of Meshwright, and how a user's mistakes are told.

    MeshwrightError
    |-- InputError      the user's input is wrong: exit code 2, every mistake of it listed
    `-- NoAnswer        it ran and the answer is no (nothing fits, a proof failed): exit code 1

An ``assert`` is for our own invariants only; a user must never see one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

__all__ = ["InputError", "MeshwrightError", "Mistake", "Mistakes", "NoAnswer", "did_you_mean"]


class MeshwrightError(Exception):
    """Everything that Meshwright raises on purpose."""


class NoAnswer(MeshwrightError):
    """The question was understood and the answer is no.

    ``answer`` is what ``--json`` prints for it, if there is more to say than the message.
    """

    def __init__(self, message: str, answer: Mapping[str, object] | None = None) -> None:
        self.answer = answer
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong with the user's input.

    Attributes:
        file: the file, or the flag for what came from the command line (``--layout``).
        key: the key inside it, dotted (``device.memory_bytes``); "" for the file as a whole.
        value: what was found there; None when nothing was.
        legal: which values would be legal, in words or as a list.
        hint: what to do about it; "" if the legal values say it all.
        problem: what is wrong, in a few words without the value ("does not divide num_heads = 40").
    """

    file: str
    key: str
    value: object
    legal: str
    hint: str = ""
    problem: str = ""

    def __str__(self) -> str:
        where = f"{_printable(self.file)}: " if self.file else ""
        what = f"`{_printable(self.key)}`" if self.key else "the file"
        value = "" if self.value is None else f" = {_short(self.value)}"
        problem = f" {self.problem}" if self.problem else " is not legal"
        lines = [f"{where}{what}{value}{problem}"]
        if self.legal:
            lines.append(f"  legal: {self.legal}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """The keys of DESIGN section 7, plus ``problem``."""
        value = self.value
        if not isinstance(value, str | int | bool | type(None)) or (isinstance(value, int) and abs(value) >= 1 << 63):
            value = _short(value)
        return {
            "file": self.file,
            "key": self.key,
            "value": value,
            "legal": self.legal,
            "hint": self.hint or "take one of the legal values",
            "problem": self.problem,
        }


class InputError(MeshwrightError):
    """The user's input is wrong; carries all mistakes that were found, in the order of the input."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes: tuple[Mistake, ...] = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class Mistakes:
    """Collects the mistakes of one input, so that all of them are told together.

    >>> with Mistakes.of("layout") as mistakes:
    ...     mistakes.add("tp", 0, "1 or more")
    Traceback (most recent call last):
    ...
    meshwright.errors.InputError: layout: `tp` = 0 is not legal
      legal: 1 or more
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Mistake] = []

    @classmethod
    @contextmanager
    def of(cls, file: str) -> Iterator[Mistakes]:
        """Collect in the body; raise InputError at its end if anything was found."""
        mistakes = cls(file)
        yield mistakes
        mistakes.raise_if_any()

    def add(self, key: str, value: object, legal: str, hint: str = "", problem: str = "") -> None:
        """Note one mistake in this file."""
        self.found.append(Mistake(self.file, key, value, legal, hint, problem))

    def extend(self, error: InputError, prefix: str = "") -> None:
        """Take over the mistakes of a part of this input, their keys prefixed."""
        self.found.extend(replace(m, key=f"{prefix}{m.key}") for m in error.mistakes)

    def raise_if_any(self) -> None:
        if self.found:
            raise InputError(self.found)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the entries of ``known`` that ``word`` begins, else the nearest one; "" if none is near."""
    from difflib import get_close_matches

    if not word or len(word) > 100:  # nobody mistypes that far, and the comparison is quadratic
        return ""
    names = {name.lower(): name for name in known}
    lower = word.lower()
    longer = [name for name in names if len(lower) > 2 and name.startswith(lower)]
    near = longer or get_close_matches(lower, names, n=1) or [name for name in names if lower.startswith(name)]
    return f"did you mean {' or '.join(f'`{names[name]}`' for name in near[:3])}?" if near else ""


def _short(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to print integers of more than 4,300 digits
        text = "a number of thousands of digits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _printable(text: str) -> str:
    """A user's own word, which may hold anything, made safe for a terminal."""
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= 300 else f"{text[:297]}..."
