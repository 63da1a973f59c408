"""Reads a launch script without running it: variables filled in, lines joined, the command with its options found.

Understood: assignments, arrays, ``${NAME:-default}``, ``$((arithmetic))``, continued lines, quotes, comments, ``#SBATCH`` lines. What a
script works out by running something (``$(...)``) stays as it is, and an option with such a value counts as not said.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Options", "Script", "options_of", "read_script"]

MAX_LINES_OF_ONE = 2000
"""Lines that one quoted text or array may go on over."""

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
ARRAY = re.compile(r"\s*(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+)?([A-Za-z_]\w*)(\+?)=\(")
HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
MOST_FILLED = 50_000
"""Characters that the variables of one word may bring: a variable that holds itself twice would double with every line."""

REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?[-=]([^}]{0,2000}))?\}|([A-Za-z_]\w*)|\(\(([^()]{0,2000})\)\))")


@dataclass(frozen=True)
class Options:
    """The options of one command: by name without leading dashes, ``_`` as ``-``; None for a flag without a value.

    Attributes:
        positional: words that belong to no option, in order.
    """

    values: dict[str, str | None] = field(default_factory=dict)
    positional: tuple[str, ...] = ()

    def number(self, *names: str) -> int | None:
        """The first of these that is a whole number."""
        for name in names:
            value = self.values.get(name)
            if value is not None and re.fullmatch(r"\d{1,9}", value):
                return int(value)
        return None

    def text(self, *names: str) -> str | None:
        """The first of these that has a value which the script itself says."""
        return next((value for name in names if (value := self.values.get(name)) is not None and "$" not in value), None)

    def has(self, *names: str) -> bool:
        return any(name in self.values for name in names)


@dataclass(frozen=True)
class Script:
    """commands: the words of each, variables filled in. variables: as they are at the end. directives: of ``#SBATCH`` lines."""

    commands: tuple[tuple[str, ...], ...]
    variables: dict[str, str]
    directives: Options


KEYWORDS = ("export", "declare", "local", "readonly")
"""Words before an assignment."""


def read_script(text: str) -> Script:
    """A shell script's commands and variables."""
    variables: dict[str, str] = {}
    commands: list[tuple[str, ...]] = []
    for line in _logical_lines(_plain(text)):
        if (array := ARRAY.match(line)) is not None:
            body = line[line.index("(") + 1 : line.rindex(")")] if ")" in line else ""
            value = " ".join(piece for word in _words(body) for piece in _pieces(word, variables))
            variables[array[1]] = f"{variables.get(array[1], '')} {value}".strip() if array[2] else value
            continue
        for statement in _statements(_words(line)):
            filled = [piece for word in _assigned(statement, variables) for piece in _pieces(word, variables)]
            if filled:
                commands.append(tuple(filled))
    return Script(tuple(commands), variables, options_of(_directives(text)))


def _plain(text: str) -> str:
    """Lines joined, sums without blanks, and what would have to be run as one word."""
    joined = text.replace("\r\n", "\n").replace("\\\n", " ")
    sums = re.sub(r"\$\(\(([^()\n]*)\)\)", lambda match: f"$(({''.join(match[1].split())}))", joined)
    return re.sub(r"\$\((?!\()[^()\n]*\)|`[^`\n]*`", "$(...)", sums)


def _statements(words: list[str]) -> Iterator[list[str]]:
    """Between ``;``, ``&&``, ``|`` and the like."""
    found: list[str] = []
    for word in words:
        if set(word) <= set(";&|"):
            yield found
            found = []
        else:
            found.append(word)
    yield found


def _assigned(words: list[str], variables: dict[str, str]) -> list[str]:
    """The words of a statement after its assignments, which go into ``variables``."""
    while words:
        if words[0] in KEYWORDS:
            words = [word for word in words[1:] if not word.startswith("-")]
            continue
        match = ASSIGNMENT.fullmatch(words[0])
        if match is None:
            return words
        name, adds, value = match.groups()
        value = _fill(value, variables)
        variables[name] = f"{variables.get(name, '')} {value}".strip() if adds else value
        words = words[1:]
    return []


def options_of(words: Iterator[str] | list[str] | tuple[str, ...]) -> Options:
    """``--a 1 --b=2 -c`` as options. A word after an option that is no option itself is its value."""
    values: dict[str, str | None] = {}
    positional: list[str] = []
    last = ""
    for word in words:
        if re.match(r"-{1,2}[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            last = name.replace("_", "-")
            values[last] = value if equals else None
            last = "" if equals else last
        elif last:
            known = values[last]
            if known is not None and not word.isdigit():
                positional.append(word)
            else:  # several numbers may follow one option
                values[last] = word if known is None else f"{known} {word}"
            last = last if word.isdigit() else ""
        else:
            positional.append(word)
    return Options(values, tuple(positional))


def _logical_lines(text: str) -> Iterator[str]:
    """Lines whose quotes and arrays are closed; what is given to a command as its input is left out."""
    held: list[str] = []
    quote, depth = "", 0
    for line in _without_here_documents(text.split("\n")):
        held.append(line)
        quote, depth = _scanned(line, quote, depth)
        if (quote or (depth > 0 and ARRAY.match(held[0]))) and len(held) < MAX_LINES_OF_ONE:
            continue
        yield "\n".join(held)
        held, quote, depth = [], "", 0
    if held:
        yield "\n".join(held)


def _without_here_documents(lines: list[str]) -> Iterator[str]:
    """Each is left out up to the line that ends it; one without an end is none."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line.strip(" \t"), []).append(number)
    number = 0
    while number < len(lines):
        yield lines[number]
        start = HERE_DOCUMENT.search(lines[number])
        ends = places.get(start[2], []) if start is not None else []
        after = bisect_right(ends, number)
        number = (ends[after] if after < len(ends) else number) + 1


def _scanned(line: str, quote: str, depth: int) -> tuple[str, int]:
    """The quote that is open at the end of a line, and the open brackets."""
    escaped = False
    for place, letter in enumerate(line):
        if escaped or (letter == "\\" and quote != "'"):
            escaped = not escaped
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (place == 0 or line[place - 1].isspace()):
            break
        else:
            depth += (letter == "(") - (letter == ")")
    return quote, depth


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quote that the file never closes
        return line.split()


def _pieces(word: str, variables: dict[str, str]) -> list[str]:
    """A word that is one variable is as many words as its value."""
    filled = _fill(word, variables)
    return _words(filled) if REFERENCE.fullmatch(word) else [filled]


def _fill(word: str, variables: dict[str, str]) -> str:
    left = MOST_FILLED

    def bounded(match: re.Match[str]) -> str:
        nonlocal left
        found = value(match)
        left -= len(found)
        return found if left >= 0 else match[0]

    def value(match: re.Match[str]) -> str:
        braced, default, plain, sum_of = match.groups()
        if sum_of is not None:
            found = _arithmetic(re.sub(r"\$?\b([A-Za-z_]\w*)\b", lambda name: variables.get(name[1], name[0]), sum_of))
            return match[0] if found is None else str(found)
        return variables.get(braced or plain, match[0] if default is None else default)

    for _ in range(8):  # a value may hold variables itself
        filled = REFERENCE.sub(bounded, word)
        if filled == word:
            break
        word = filled
    return word


def _arithmetic(text: str) -> int | None:
    """``8 * 4 / 2`` from left to right by the usual precedence; None for anything else."""
    if not re.fullmatch(r"\s*\d{1,9}(?:\s*[-+*/%]\s*\d{1,9}){0,20}\s*", text):
        return None
    parts = re.findall(r"\d+|[-+*/%]", text)
    sums: list[int] = [int(parts[0])]
    for sign, digits in zip(parts[1::2], parts[2::2], strict=True):
        number = int(digits)
        if sign in "/%" and not number:
            return None
        if sign == "*":
            sums[-1] *= number
        elif sign in "/%":
            sums[-1] = sums[-1] // number if sign == "/" else sums[-1] % number
        else:
            sums.append(number if sign == "+" else -number)
    return sum(sums)


def _directives(text: str) -> list[str]:
    return [word for line in re.findall(r"(?m)^#SBATCH\s+(.*)$", text) for word in _words(line)]
