"""Typed reading of the keys of one TOML table or JSON object, with every mistake collected and none raised.

    with Mistakes.of("my-cluster.toml") as mistakes:
        table = Table(read_toml(path), mistakes)
        name = table.text("name")                            # required: a mistake is noted if it is not there
        size = table.integer("num_gpus", None)               # optional: int | None
        speed = table.number("bandwidth", above=0.0)         # finite; an int is taken as well
        for tier in table.tables("tiers"):                   # keys in mistakes read tiers[0].latency_s
            latency_s = tier.number("latency_s", low=0.0)
            tier.refuse_unread()                             # unknown keys, with did-you-mean
        if table.sound("num_gpus", "bandwidth"):             # a check across keys, only where both were read
            ...
        table.refuse_unread()
    ... build the dataclass here: nothing was wrong ...

Where a key is missing or wrong, a reader notes the mistake and returns the default, or a stand-in of the right type: use it
for nothing but to go on looking for mistakes. A JSON ``null`` counts as absent. ``true`` is never a number.
``key in table`` asks without reading; it also counts as knowing the key. ``own_keys`` is for tables whose
keys the user names. Readers: ``integer number byte_count flag text choice integers texts scalar table tables``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

from meshwright.errors import Mistakes, did_you_mean
from meshwright.units import parse_bytes

__all__ = ["LARGEST_SIZE", "REQUIRED", "Table"]

T = TypeVar("T")
V = TypeVar("V")

LARGEST_SIZE = 10**8
"""No size of a model, job or cluster is larger; what is, is a slip of the keyboard."""

REQUIRED: Any = object()
"""Default of a key that must be there."""


class Table:
    """One table of the user's input; see the module's docstring."""

    def __init__(self, values: Mapping[str, object], mistakes: Mistakes, prefix: str = "") -> None:
        self.values = values
        self.mistakes = mistakes
        self.prefix = prefix
        self._known: dict[str, None] = {}
        self._wrong: set[str] = set()

    def __contains__(self, key: str) -> bool:
        self._known[key] = None
        return self.values.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        """The keys that the user wrote."""
        return iter(self.values)

    def own_keys(self) -> list[str]:
        """The keys of a table in which the user names them; one that is no printable text is a mistake."""
        for key in self.values:
            if not key.strip() or not key.isprintable():
                self.note(key, "printable text", problem="is no name for a key")
        return [key for key in self.values if key not in self._wrong]

    def integer(self, key: str, default: T = REQUIRED, *, low: int = 1, high: int = LARGEST_SIZE) -> int | T:
        """A whole number from ``low`` to ``high``; 8.0 is not one."""

        def convert(value: object) -> int | None:
            return value if _is_int(value) and low <= value <= high else None

        return self._read(key, default, convert, low, _range_words("a whole number", low, high), _unquote)

    def number(
        self,
        key: str,
        default: T = REQUIRED,
        *,
        low: float = -math.inf,
        high: float = math.inf,
        above: float | None = None,
        unit: str = "",
    ) -> float | T:
        """A finite number from ``low`` to ``high``, and above ``above`` if that is given; ``unit`` is the hint if it is not."""

        def convert(value: object) -> float | None:
            number = _finite(value)
            if number is None or not low <= number <= high or (above is not None and number <= above):
                return None
            return number

        legal = _range_words("a finite number", low, high, above)
        return self._read(key, default, convert, 1.0, legal, lambda value: _unquote(value) or unit)

    def byte_count(self, key: str, default: T = REQUIRED, *, low: int = 1, high: int = 1 << 50) -> int | T:
        """Bytes: a whole number (80e9 is one), or text with a unit such as "80GiB"."""

        def convert(value: object) -> int | None:
            count = _as_bytes(value)
            return count if count is not None and low <= count <= high else None

        legal = f'bytes from {low} to {high}, as a number or with a unit: 85899345920, 80e9, "80GiB"'
        return self._read(key, default, convert, low, legal)

    def flag(self, key: str, default: T = REQUIRED) -> bool | T:
        """``true`` or ``false``."""
        return self._read(key, default, lambda value: value if isinstance(value, bool) else None, False, "true or false", _unquote)

    def text(self, key: str, default: T = REQUIRED, *, multiline: bool = False) -> str | T:
        """Printable text, not empty; with ``multiline`` it may have line breaks."""

        def convert(value: object) -> str | None:
            if not isinstance(value, str):
                return None
            visible = value.replace("\n", "") if multiline else value
            return value if visible.strip() and visible.isprintable() else None

        return self._read(key, default, convert, "", "printable text in quotes")

    def choice(self, key: str, options: Iterable[str], default: T = REQUIRED) -> str | T:
        """One of ``options``."""
        known = list(options)

        def convert(value: object) -> str | None:
            return value if isinstance(value, str) and value in known else None

        def hint(value: object) -> str:
            return did_you_mean(value, known) if isinstance(value, str) else ""

        return self._read(key, default, convert, known[0], "one of " + " ".join(known), hint)

    def integers(self, key: str, default: T = REQUIRED, *, low: int = 0, high: int = LARGEST_SIZE) -> tuple[int, ...] | T:
        """An array of whole numbers, which may be empty."""

        def convert(value: object) -> tuple[int, ...] | None:
            if isinstance(value, list) and all(_is_int(item) and low <= item <= high for item in value):
                return tuple(value)
            return None

        nothing: tuple[int, ...] = ()
        return self._read(key, default, convert, nothing, _range_words("an array of whole numbers, each", low, high))

    def texts(self, key: str, default: T = REQUIRED) -> tuple[str, ...] | T:
        """An array of printable texts, which may be empty."""

        def convert(value: object) -> tuple[str, ...] | None:
            return tuple(value) if isinstance(value, list) and all(isinstance(v, str) and v.isprintable() for v in value) else None

        nothing: tuple[str, ...] = ()
        return self._read(key, default, convert, nothing, "an array of printable texts in quotes")

    def scalar(self, key: str) -> bool | int | float | str | tuple[float, ...]:
        """One value of any kind: true or false, a finite number, printable text, or an array of finite numbers."""

        def convert(value: object) -> bool | int | float | str | tuple[float, ...] | None:
            if isinstance(value, list):
                return tuple(value) if all(_finite(item) is not None for item in value) else None
            if isinstance(value, str):
                return value if value.isprintable() else None
            return value if isinstance(value, bool | int | float) and (isinstance(value, bool) or _finite(value) is not None) else None

        zero: bool | int | float | str | tuple[float, ...] = 0
        return self._read(key, REQUIRED, convert, zero, "true or false, a finite number, text, or an array of finite numbers")

    def table(self, key: str, *, required: bool = True) -> Table | None:
        """A table inside this one; None where there is none."""

        def convert(value: object) -> Table | None:
            return Table(value, self.mistakes, f"{self.prefix}{key}.") if isinstance(value, dict) else None

        default: Any = REQUIRED if required else None
        return self._read(key, default, convert, None, f"a table: [{self.prefix}{key}]")

    def tables(self, key: str, *, required: bool = True) -> list[Table]:
        """The tables of an array of tables; [] where there is none."""

        def convert(value: object) -> list[Table] | None:
            if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
                return [Table(item, self.mistakes, f"{self.prefix}{key}[{i}].") for i, item in enumerate(value)]
            return None

        default: Any = REQUIRED if required else []
        nothing: list[Table] = []
        return self._read(key, default, convert, nothing, f"one or more tables: [[{self.prefix}{key}]]")

    def sound(self, *keys: str) -> bool:
        """Whether all of ``keys`` were read so far without a mistake (an absent optional key is sound)."""
        return not self._wrong.intersection(keys)

    def note(self, key: str, legal: str, hint: str = "", problem: str = "") -> None:
        """Note a mistake in the value of ``key`` that the readers could not see."""
        self._wrong.add(key)
        self.mistakes.add(f"{self.prefix}{key}", self.values.get(key), legal, hint, problem)

    def unread(self) -> list[str]:
        """The keys that the user wrote and nobody has asked for yet."""
        return [key for key in self.values if key not in self._known]

    def refuse_unread(self, hints: Mapping[str, str] | None = None) -> None:
        """Note every key that nobody asked for as unknown; ``hints`` has words for likely slips."""
        known = list(self._known)
        for key in self.unread():
            hint = (hints or {}).get(key) or did_you_mean(key, known) or "take it out"
            self.note(key, "the keys " + " ".join(known), hint, "is not a known key")

    def _read(
        self,
        key: str,
        default: T,
        convert: Callable[[object], V | None],
        stand_in: V,
        legal: str,
        hint: Callable[[object], str] = lambda _: "",
    ) -> V | T:
        """What ``convert`` makes of the value of ``key``; it returns None for what is not legal."""
        if key not in self:
            if default is not REQUIRED:
                return default
            self.note(key, legal, hint(None), "is missing")
            return stand_in
        value = self.values[key]
        result = convert(value)
        if result is not None:
            return result
        self.note(key, legal, hint(value))
        return stand_in if default is REQUIRED else default


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> float | None:
    """A finite float, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _as_bytes(value: object) -> int | None:
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except (ValueError, OverflowError):
            return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if _is_int(value) else None


def _unquote(value: object) -> str:
    return "write it without quotes" if isinstance(value, str) else ""


def _range_words(kind: str, low: float, high: float, above: float | None = None) -> str:
    if above is not None:
        kind += f" above {above:g}"
    elif low > -math.inf:
        kind += f" from {_spell(low)}" if high < math.inf else f" of {_spell(low)} or more"
    if high < math.inf:
        kind += f" to {_spell(high)}" if low > -math.inf and above is None else f" up to {_spell(high)}"
    return kind


def _spell(number: float) -> str:
    if number == LARGEST_SIZE:
        return "10^8"
    return str(number) if isinstance(number, int) else f"{number:g}"
