"""Numbers that remember their formula."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.explain.letters import Letter, formula, per_unit, quotient, terms_of, value_of

SIZES = {"a": 12, "b": 8, "c": 6, "mb": 2, "S": 4096, "cp": 4}
LETTERS = {name: Letter(name, size) for name, size in SIZES.items()}
a, b, c = LETTERS["a"], LETTERS["b"], LETTERS["c"]


@st.composite
def expressions(draw, depth=3):
    """A number made of letters by the operations that formulas use."""
    if depth == 0:
        return draw(st.sampled_from([*LETTERS.values(), 1, 2, 3]))
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    return draw(st.sampled_from([lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x // y if y else x, max, min]))(
        left, right
    )


@given(expressions())
def test_a_formula_has_the_value_of_its_number(number):
    assert value_of(number, SIZES) == int(number)


@given(expressions(), expressions())
def test_numbers_behave_as_plain_ones(left, right):
    assert (left + right, left - right, left * right) == (int(left) + int(right), int(left) - int(right), int(left) * int(right))
    assert (left < right, left == right) == (int(left) < int(right), int(left) == int(right))
    if right:
        assert (left // right, left % right) == (int(left) // int(right), int(left) % int(right))


def test_divisions_with_a_remainder_and_floats_are_plain_numbers():
    assert type(a // 5) is int and type(a // b) is int  # 12 / 8
    assert type(a / 5) is float and type(1.0 * a) is float and type(a * 0.5) is float
    assert type(a // (b - c)) is int  # no single term to divide by


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (a, "a"),
        (a - a, "0"),
        (2 * a * b // 2, "a b"),
        (a * a, "a^2"),
        (3 * a + 6 * b, "3 (a+2 b)"),
        (a * b + a * c, "a (b+c)"),
        (a * (b - 1) * 2 // c, "2 a (b-1)/c"),
        (a // c + 1, "a/c + 1"),
        (a // (c * 2), "a/(2 c)"),
        ((a + b) * (2 * c - 1), "(a+b) (2 c-1)"),
        (LETTERS["mb"] * LETTERS["S"] // LETTERS["cp"] * a, "T a"),
        (LETTERS["mb"] * LETTERS["S"] // LETTERS["cp"] * (2 * LETTERS["cp"] - 1), "T (2 cp-1)"),
        (Letter.of(1, {(): Fraction(1)}), "1"),
        (7, "7"),
    ],
)
def test_formulas_are_told_in_factors(number, text):
    assert formula(number) == text


def test_a_share_may_be_told_as_one_fraction():
    share = per_unit((a - 1) * b * Letter("M", 12) // a, b)
    assert formula(share) == "M (1 - 1/a)"
    assert formula(share, one_fraction=True) == "M (a-1)/a"


def test_quotients_are_single_terms():
    part = a * b + a * c
    assert formula(quotient(2 * part * c, part)) == "2 c"
    assert quotient(part + 1, part) is None
    assert quotient(a * b, a + b) is None
    assert dict(terms_of(quotient(part, part))) == {(): 1}
