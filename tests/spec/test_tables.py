"""Typed reading of tables: what is legal comes back, what is not is noted with its key, and nothing is raised."""

from __future__ import annotations

import json
import math

import pytest

from meshwright.errors import InputError, Mistakes, did_you_mean
from meshwright.spec.tables import Table

HUGE = 16**5000  # Python refuses to print it


def read(values):
    mistakes = Mistakes("file.toml")
    return Table(values, mistakes), mistakes


@pytest.mark.parametrize("value", [1, 7, 10**8])
def test_whole_numbers(value):
    table, mistakes = read({"n": value})
    assert table.integer("n") == value
    assert not mistakes.found


@pytest.mark.parametrize("value", [0, -1, 10**8 + 1, pytest.param(HUGE, id="huge"), 1.0, True, "7", [7], {"n": 7}, math.nan])
def test_what_is_no_whole_number_in_range(value):
    table, mistakes = read({"n": value})
    table.integer("n")
    assert [m.key for m in mistakes.found] == ["n"]
    assert mistakes.found[0].legal == "a whole number from 1 to 10^8"
    assert not table.sound("n")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, pytest.param(HUGE, id="huge"), True, "1.5", None, []])
def test_what_is_no_finite_number(value):
    table, mistakes = read({"x": value})
    table.number("x")
    assert [m.key for m in mistakes.found] == ["x"]


def test_a_number_may_be_written_as_a_whole_one():
    table, _ = read({"x": 3})
    number = table.number("x", above=0.0)
    assert number == 3.0 and isinstance(number, float)


@pytest.mark.parametrize(("value", "expected"), [("80GiB", 80 << 30), ("80GB", 80 * 10**9), (80e9, 80 * 10**9), (1024, 1024)])
def test_bytes_with_and_without_unit(value, expected):
    table, mistakes = read({"memory_bytes": value})
    assert table.byte_count("memory_bytes") == expected
    assert not mistakes.found


@pytest.mark.parametrize("value", ["80 apples", "", "-1GiB", "1e400GiB", 1.5, math.inf, True, 1 << 51, "9" * 400 + "GB"])
def test_what_is_no_number_of_bytes(value):
    table, mistakes = read({"memory_bytes": value})
    table.byte_count("memory_bytes")
    assert [m.key for m in mistakes.found] == ["memory_bytes"]


def test_an_absent_key_is_its_default_or_a_mistake():
    table, mistakes = read({"gone": None})
    assert table.integer("gone", None) is None
    assert table.text("other", "default") == "default"
    assert not mistakes.found
    table.integer("gone")
    assert mistakes.found[0].problem == "is missing"


def test_text_is_printable():
    table, mistakes = read({"a": "name", "b": "two\nlines", "c": "\x1b[31m", "d": "\ud800", "e": "  "})
    assert table.text("a") == "name"
    assert table.text("b", multiline=True) == "two\nlines"
    for key in "bcde":
        table.text(key)
    assert [m.key for m in mistakes.found] == list("bcde")


def test_mistakes_name_the_place_inside_nested_tables():
    table, mistakes = read({"tiers": [{"size": 8}, {"size": "8"}], "device": {"nmae": "x"}})
    for tier in table.tables("tiers"):
        tier.integer("size")
    device = table.table("device")
    device.text("name", "")
    device.refuse_unread()
    assert [m.key for m in mistakes.found] == ["tiers[1].size", "device.nmae"]
    assert mistakes.found[0].hint == "write it without quotes"
    assert mistakes.found[1].hint == "did you mean `name`?"


@pytest.mark.parametrize("value", [[], [1], {}, "x", 3])
def test_what_is_no_array_of_tables(value):
    table, mistakes = read({"tiers": value})
    assert table.tables("tiers") == []
    assert len(mistakes.found) == 1


def test_a_choice_suggests_the_nearest():
    table, mistakes = read({"device": "H100_SXM"})
    table.choice("device", ["a100-sxm", "h100-sxm"])
    assert mistakes.found[0].hint == "did you mean `h100-sxm`?"


def test_arrays():
    table, mistakes = read({"n": [1, 2], "bad": [1, "2"], "words": ["a"], "bad_words": ["a", 1], "x": [1, 2.5], "bad_x": [math.nan]})
    assert table.integers("n") == (1, 2)
    assert table.texts("words") == ("a",)
    assert table.scalar("x") == (1, 2.5)
    table.integers("bad")
    table.texts("bad_words")
    table.scalar("bad_x")
    assert [m.key for m in mistakes.found] == ["bad", "bad_words", "bad_x"]


def test_a_mistake_can_always_be_printed():
    """Keys and values are the user's: numbers that Python does not print, lone surrogates, escape sequences, megabytes."""
    table, mistakes = read({"\ud800": HUGE, "\x1b[2J": "\udfff" * 10**6, "k" * 10**6: [HUGE], "x": {"y": HUGE}})
    table.refuse_unread()
    error = InputError(mistakes.found)
    text = str(error).encode("utf-8").decode()
    assert "\x1b" not in text and len(text) < 4000
    json.dumps([m.as_json() for m in error.mistakes]).encode("utf-8")


@pytest.mark.parametrize(("word", "hint"), [("latency", "latency_s"), ("SIZE", "size"), ("", ""), ("zzz", ""), ("a" * 10**5, "")])
def test_did_you_mean(word, hint):
    assert did_you_mean(word, ["latency_s", "size"]) == (f"did you mean `{hint}`?" if hint else "")


def test_a_word_that_begins_names_means_those():
    """By letters `v100-sxm` is nearer to `a100-sxm` than the two names that go on where it stops."""
    names = ["v100-sxm", "a100-sxm-40g", "a100-sxm-80g"]
    assert did_you_mean("a100-sxm", names) == "did you mean `a100-sxm-40g` or `a100-sxm-80g`?"
