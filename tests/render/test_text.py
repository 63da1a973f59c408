"""Tables as text."""

from __future__ import annotations

import sys

import pytest

from meshwright.render.text import WIDTH, Column, table, wrapped


class Terminal:
    """Stands for a terminal where only the question is asked whether it is one."""

    def __init__(self, real):
        self.real = real

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self.real, name)


def test_a_table_in_a_pipe():
    text = table("Two plans", ["layout", Column("step", right=True)], [["tp=8 sp", "6.1 s"], ["tp=4", "12.25 s"]], notes=["balanced load"])
    assert text == (
        "Two plans\n"
        "\n"
        "layout       step\n"
        "─────────────────\n"
        "tp=8 sp     6.1 s\n"
        "tp=4      12.25 s\n"
        "balanced load"
    )  # fmt: skip


def test_brackets_in_cells_are_not_markup():
    text = table("", ["shape"], [["bf16[B/dp, S/(cp,tp), D]{+tp}"], ["[bold]x[/bold]"], [":smile:"]])
    assert text.splitlines()[2:] == ["bf16[B/dp, S/(cp,tp), D]{+tp}", "[bold]x[/bold]", ":smile:"]


def test_none_is_an_empty_cell_and_other_values_are_printed():
    assert table("", ["a", "b"], [[None, 3]]).splitlines()[-1].split() == ["3"]


def test_lines_fit_the_fixed_width_and_no_word_is_lost():
    words = [f"word{i}" for i in range(60)]
    text = table("", ["why", "what"], [[" ".join(words), "x"]])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert [word for word in words if word not in text] == []


def test_the_width_can_be_asked_for():
    assert max(map(len, table("", ["why"], [["a " * 100]], width=30).splitlines())) <= 30


@pytest.mark.parametrize(("terminal", "no_color", "styled"), [(True, False, True), (True, True, False), (False, False, False)])
def test_styles_only_on_a_terminal_without_no_color(terminal, no_color, styled, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    if terminal:
        monkeypatch.setattr(sys, "stdout", Terminal(sys.stdout))
    assert ("\x1b[" in table("Title", ["a"], [["b"]])) == styled


def test_wrapped_text_goes_on_under_its_beginning() -> None:
    lines = wrapped("one two three four", "  1. ", 12)
    assert lines == ["  1. one two", "     three", "     four"]


def test_what_is_longer_than_a_line_stays_whole() -> None:
    layout = "stages=" + ",".join(["2"] * 40)
    assert wrapped(f"with {layout}", "", 30) == ["with", layout]
