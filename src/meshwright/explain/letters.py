"""Whole numbers that remember how they came about: the ledger, run on them, gives its formulas in letters.

``Letter("D", 4096) * 2`` is 8192 and knows that it is 2 D. The value decides comparisons, so that the ledger takes the branches
of that size; the letters come out with the result. A formula is a sum of terms, each a factor times letters with whole powers.
What has no such form (a division with a remainder, a float) is a plain number again.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm
from typing import Any

Term = tuple[tuple[str, int], ...]
"""Letters with their powers, sorted; () is a pure number."""

ORDER = ("m", "T", "mb", "S", "batch")
"""Letters that are printed before the others, in this order."""

TOKENS = {"mb": 1, "S": 1, "cp": -1}
"""T, the tokens of a micro-batch on one rank, in other letters."""


class Letter(int):
    """A whole number with its formula.

    Attributes:
        terms: the formula, as the factor of each term.
    """

    terms: Mapping[Term, Fraction]

    def __new__(cls, name: str, value: int) -> Letter:
        return cls.of(value, {((name, 1),): Fraction(1)})

    @classmethod
    def of(cls, value: int, terms: Mapping[Term, Fraction]) -> Letter:
        """A number with a given formula."""
        made = int.__new__(cls, value)
        made.terms = {term: factor for term, factor in terms.items() if factor}
        return made

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return int(self) + other
        terms = dict(self.terms)
        for term, factor in terms_of(other).items():
            terms[term] = terms.get(term, Fraction(0)) + factor
        return Letter.of(int(self) + int(other), terms)

    __radd__ = __add__

    def __neg__(self) -> Letter:
        return Letter.of(-int(self), {term: -factor for term, factor in self.terms.items()})

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return int(self) * other
        terms: dict[Term, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in terms_of(other).items():
                term = _product(left, right)
                terms[term] = terms.get(term, Fraction(0)) + a * b
        return Letter.of(int(self) * int(other), terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _divided(self, other, int(self) // other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided(other, self, other // int(self))

    def __truediv__(self, other: Any) -> Any:
        return _divided(self, other, int(self) / other)

    def __rtruediv__(self, other: Any) -> Any:
        return _divided(other, self, other / int(self))


def terms_of(number: int) -> Mapping[Term, Fraction]:
    """The formula of any whole number."""
    return number.terms if isinstance(number, Letter) else {(): Fraction(int(number))}


def quotient(whole: int, part: int) -> Letter | None:
    """The single term by which ``part`` must be multiplied to give ``whole``, None if there is none."""
    a, b = terms_of(whole), terms_of(part)
    if not a or len(a) != len(b):
        return None
    for left, factor in a.items():
        right, divisor = next(iter(b.items()))
        ratio = _product(left, _inverse(right))
        scale = factor / divisor
        if {_product(ratio, term): scale * each for term, each in b.items()} == dict(a):
            return Letter.of(int(whole) // int(part), {ratio: scale})
    return None


def per_unit(number: int, unit: Letter) -> Letter:
    """The formula divided by a letter of which it has one in each term. Its value is only that of the formula."""
    terms = _over(terms_of(number), next(iter(unit.terms)), Fraction(1))
    return Letter.of(int(number) // int(unit), terms)


def value_of(number: int, letters: Mapping[str, int]) -> Fraction:
    """The formula at other sizes.

    Raises:
        KeyError: a letter without a size.
    """
    total = Fraction(0)
    for term, factor in terms_of(number).items():
        for letter, power in term:
            factor *= Fraction(letters[letter]) ** power
        total += factor
    return total


def formula(number: int, one_fraction: bool = False) -> str:
    """``8 m T D L/pp``, ``L/pp + 1``.

    Args:
        one_fraction: ``(tp-1)/tp`` instead of ``1 - 1/tp``.
    """
    terms = terms_of(number)
    if not any(terms.values()):
        return "0"
    common, scale = _common(list(terms)), _scale(list(terms.values()))
    rest = _over(terms, common, scale)
    common = _with_tokens(common)
    if not one_fraction:  # letters that are above and below stay in their terms
        above = {letter for term in rest for letter, power in term if power > 0}
        split = tuple((letter, power) for letter, power in common if power < 0 and letter in above)
        rest, common = _over(rest, _inverse(split), Fraction(1)), _product(common, _inverse(split))
    factors = [_power(letter, power) for letter, power in _sorted(common) if power > 0]
    below = [_power(letter, -power) for letter, power in _sorted(common) if power < 0]
    if scale.denominator != 1:
        below.insert(0, str(scale.denominator))
    sums = _split(rest) if len(rest) > 1 else []
    alone = len(sums) == 1 and not factors and not below and scale == 1
    factors += [_sum(each) if alone else f"({_sum(each)})" for each in sums]
    if scale.numerator != 1 or not factors:
        factors.insert(0, str(scale.numerator))
    return " ".join(factors) + _under(below)


def _split(terms: Mapping[Term, Fraction]) -> list[Mapping[Term, Fraction]]:
    """``a c + b c - a - b`` as ``(a + b)`` and ``(c - 1)``, where one letter can be taken out that way."""
    for letter in sorted({letter for term in terms for letter, _ in term}):
        groups: dict[int, dict[Term, Fraction]] = {}
        for term, factor in terms.items():
            power = dict(term).get(letter, 0)
            groups.setdefault(power, {})[_product(term, ((letter, -power),))] = factor
        first = min(groups.values(), key=lambda group: sum(group.values()) < 0)
        first = _over(first, (), _scale(list(first.values())))
        ratios = {power: _ratio(group, first) for power, group in groups.items()}
        if len(groups) > 1 and len(first) > 1 and all(ratios.values()):
            return [first, {((letter, power),) if power else (): ratio or Fraction(0) for power, ratio in ratios.items()}]
    return [terms]


def _ratio(group: Mapping[Term, Fraction], other: Mapping[Term, Fraction]) -> Fraction | None:
    """The number by which ``other`` must be multiplied to give ``group``, if there is one."""
    if set(group) != set(other):
        return None
    ratios = {group[term] / other[term] for term in group}
    return ratios.pop() if len(ratios) == 1 else None


def _over(terms: Mapping[Term, Fraction], common: Term, scale: Fraction) -> dict[Term, Fraction]:
    """All terms divided by one."""
    return {_product(term, _inverse(common)): factor / scale for term, factor in terms.items()}


def _inverse(term: Term) -> Term:
    return tuple((letter, -power) for letter, power in term)


def _power(letter: str, power: int) -> str:
    return letter if power == 1 else f"{letter}^{power}"


def _under(below: list[str]) -> str:
    return f"/{below[0]}" if len(below) == 1 else f"/({' '.join(below)})" if below else ""


def _divided(whole: Any, part: Any, plain: int | float) -> int | float:
    """``whole / part`` with its formula where that is exact and ``part`` one term; else the plain result."""
    if not isinstance(whole, int) or not isinstance(part, int) or int(part) == 0 or int(whole) % int(part):
        return plain
    if len(terms_of(part)) != 1:
        return plain
    ((term, factor),) = terms_of(part).items()
    return Letter.of(int(whole) // int(part), _over(terms_of(whole), term, factor))


def _product(left: Term, right: Term) -> Term:
    powers = dict(left)
    for letter, power in right:
        powers[letter] = powers.get(letter, 0) + power
    return tuple(sorted((letter, power) for letter, power in powers.items() if power))


def _with_tokens(term: Term) -> Term:
    """mb S/cp is T."""
    powers = dict(term)
    if powers.get("mb", 0) >= 1 and powers.get("S", 0) >= 1 and powers.get("cp", 0) <= -1:
        return _product(_product(term, _inverse(tuple(TOKENS.items()))), (("T", 1),))
    return term


def _common(terms: list[Term]) -> Term:
    """The letters that all terms have, with the least power."""
    letters = {letter for term in terms for letter, _ in term}
    powers = {letter: min(dict(term).get(letter, 0) for term in terms) for letter in letters}
    return tuple(sorted((letter, power) for letter, power in powers.items() if power))


def _scale(factors: list[Fraction]) -> Fraction:
    """The greatest factor that leaves whole numbers."""
    return Fraction(gcd(*(factor.numerator for factor in factors)), lcm(*(factor.denominator for factor in factors)))


def _sorted(term: Term) -> list[tuple[str, int]]:
    place = {letter: index for index, letter in enumerate(ORDER)}
    return sorted(term, key=lambda item: (place.get(item[0], len(ORDER)), item[0]))


def _sum(terms: Mapping[Term, Fraction]) -> str:
    """``2 cp-1``, ``L/pp + 1``: what is taken away comes last, pure numbers before that."""
    words: list[str] = []
    told = {_with_tokens(term): factor for term, factor in terms.items()}
    plain = all(power > 0 for term in told for _, power in term)
    for term, factor in sorted(told.items(), key=lambda item: (item[1] < 0, not item[0], item[0])):
        above = [_power(letter, power) for letter, power in _sorted(term) if power > 0]
        below = [_power(letter, -power) for letter, power in _sorted(term) if power < 0]
        size = abs(factor)
        if size != 1 or not above:
            above.insert(0, str(size))
        sign = "-" if factor < 0 else "+"
        words.append(f"{sign}{' '.join(above)}{_under(below)}")
    first = words[0].removeprefix("+")
    return "".join([first, *words[1:]]) if plain else " ".join([first, *(f"{word[0]} {word[1:]}" for word in words[1:])])
