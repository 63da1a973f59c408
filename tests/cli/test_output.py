"""What --json prints."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from meshwright.cli.output import emit, plain, print_json


@dataclass(frozen=True)
class Point:
    x: int
    names: tuple[str, ...]


def test_our_values_become_json_values():
    value = {"point": Point(1, ("a", "b")), 3: np.float64(0.5), "array": np.arange(3), "set": {2, 1}, "none": None, "flag": np.bool_(True)}
    assert plain(value) == {
        "point": {"x": 1, "names": ["a", "b"]}, "3": 0.5, "array": [0, 1, 2], "set": [1, 2], "none": None, "flag": True,
    }  # fmt: skip
    assert json.loads(json.dumps(plain(value))) == plain(value)


def test_large_integers_keep_every_digit(capsys):
    print_json({"flops": np.int64(2**62 + 1)})
    assert json.loads(capsys.readouterr().out) == {"flops": 2**62 + 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan"), np.array([1.0, -np.inf])], ids=str)
def test_nan_and_infinity_are_never_printed(value, capsys):
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"deep": [{"value": value}]})
    assert capsys.readouterr().out == ""


def test_the_text_is_only_made_when_it_is_wanted(capsys):
    def never() -> str:
        raise AssertionError("made a text for --json")

    emit(True, {"a": 1}, never)
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    emit(False, {"a": 1}, lambda: "one")
    assert capsys.readouterr().out == "one\n"


def test_half_a_character_is_printed_as_its_number(capsys):
    """Names of files that are not UTF-8 come as halves of surrogate pairs, which no terminal takes."""
    emit(False, {}, lambda: "a\udcffb")
    assert capsys.readouterr().out == "a\\udcffb\n"
