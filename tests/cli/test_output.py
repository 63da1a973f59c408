"""What --json prints."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from meshwright.cli.mistakes import report_mistakes
from meshwright.cli.output import emit, plain, print_json, tell
from meshwright.errors import Mistake
from meshwright.render.text import table


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


HOSTILE = "node\x1b]0;owned\x07\x1b[2J\x1b[8m\x9b31m\u202egnp.exe\u2028x"
ESCAPED = "node\\x1b]0;owned\\x07\\x1b[2J\\x1b[8m\\x9b31m\\u202egnp.exe\\u2028x"


def test_what_a_terminal_would_obey_is_written_out(capsys):
    """Escape sequences set titles, clear screens and hide text; an override of direction turns names round."""
    emit(False, {}, lambda: f"rank 3 on {HOSTILE}\n\tsecond line \u00e9 \u4e2d \u2500")
    tell(f"warning: {HOSTILE}")
    report_mistakes([Mistake(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)], as_json=False)
    out, err = capsys.readouterr()
    assert out == f"rank 3 on {ESCAPED}\n\tsecond line \u00e9 \u4e2d \u2500\n"
    assert err.startswith(f"warning: {ESCAPED}\n")
    assert not {letter for letter in out + err if ord(letter) < 32 or letter in "\x7f\x9b\u202e\u2028"} - {"\n", "\t"}


def test_json_keeps_every_character(capsys):
    emit(True, {"host": HOSTILE}, str)
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"host": HOSTILE} and "\x1b" not in printed


def test_cells_of_tables_are_written_out_and_our_own_bold_stays(monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    text = table(HOSTILE, ["host"], [[HOSTILE]], notes=[HOSTILE], width=100)
    assert "\x1b[1m" in text
    emit(False, {}, lambda: text)
    printed = capsys.readouterr().out
    assert printed.count(ESCAPED) == 3
    assert printed.replace("\x1b[1m", "").replace("\x1b[0m", "").count("\x1b") == 0


def test_a_diagnosis_of_hostile_logs_is_printable(tmp_path, meshwright):
    """Host names and lines of a log reach the findings; the note on a file that is no log holds its name, with its line end."""
    for rank, count in enumerate((52, 52, 51)):
        lines = (
            f"[rank{rank}]:[E603 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum={count}, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600061 milliseconds.\n"
            f"[rank{rank}]:[E603 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(tp\x1b[2J\x07) Rank {rank}] failure detected by watchdog at "
            f"work sequence id: {count} PG status: last enqueued work: {count}, last completed work: {count - 1}\n"
        )
        (tmp_path / f"rank{rank}.log").write_text(lines, encoding="utf-8")
    (tmp_path / "a\x1b[2J\nverdict: nothing wrong found.json").write_text("?", encoding="utf-8")
    done = meshwright("diagnose", str(tmp_path))
    assert "\x1b" not in done.output and "\x07" not in done.output
    assert "a\\x1b[2J\\nverdict" in done.output and "tp\\x1b[2J\\x07" in done.output
