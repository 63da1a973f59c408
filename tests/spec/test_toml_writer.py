"""What is written as TOML is what tomllib reads back, every float to its last bit."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.spec.toml_writer import toml_text

texts = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
arrays = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=10)
tables = st.recursive(
    st.dictionaries(texts, arrays, max_size=4),
    lambda inner: st.dictionaries(texts, arrays | inner | st.lists(inner, min_size=1, max_size=3), max_size=4),
    max_leaves=12,
)


@given(tables)
@example({"a": {"b": [{"c": [{}]}], "": {}}, "x": 1e-7})
def test_round_trip(values):
    assert tomllib.loads(toml_text(values)) == values


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(5e-324)
@example(1.7976931348623157e308)
def test_floats_keep_every_bit(number):
    back = tomllib.loads(toml_text({"x": number}))["x"]
    assert back.hex() == number.hex()


@pytest.mark.parametrize("value", [math.nan, math.inf, None, object(), [None], "\ud800", {1, 2}])
def test_what_toml_cannot_hold(value):
    with pytest.raises(ValueError):
        toml_text({"x": value})
