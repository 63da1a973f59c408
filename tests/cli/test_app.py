"""The frame of the command line: what is offered, and what becomes of errors."""

from __future__ import annotations

import json
import os

import click
import pytest
from click.testing import CliRunner

import meshwright as package
from meshwright.cli.app import COMMANDS, Meshwright, cli
from meshwright.cli.options import Count, command
from meshwright.errors import InputError, Mistake, NoAnswer


@command()
@click.argument("what", default="nothing")
@click.option("--gpus", type=Count(), required=True)
@click.option("--nodes", type=Count())
def fail(what: str, gpus: int, nodes: int | None, as_json: bool) -> None:
    """Raise what is asked for."""
    errors = {
        "input": InputError([Mistake("a.toml", "tp", 0, "1 or more"), Mistake("a.toml", "pp", "x", "a number")]),
        "no": NoAnswer("nothing fits"),
        "no-with-answer": NoAnswer("nothing fits", {"plans": [], "nearest": {"tp": 8}}),
        "interrupt": KeyboardInterrupt(),
        "pipe": BrokenPipeError(),
    }
    if what in errors:
        raise errors[what]
    click.echo("{}" if as_json else "done")


class Failing(Meshwright):
    def list_commands(self, ctx):
        return ["fail"]

    def get_command(self, ctx, cmd_name):
        return fail if cmd_name == "fail" else None


def run(*args):
    return CliRunner().invoke(Failing("meshwright"), list(args), prog_name="meshwright")


def errors_of(result):
    """The mistakes on stdout, which must hold one JSON object and nothing else."""
    assert result.exit_code == 2
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert list(answer) == ["errors"]
    return answer["errors"]


def test_a_good_run_exits_0():
    result = run("fail", "--gpus", "8")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "done\n", "")


def test_wrong_input_exits_2_and_lists_every_mistake_on_stderr():
    result = run("fail", "input", "--gpus", "8")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: a.toml: `tp` = 0 is not legal\n  legal: 1 or more\nerror: a.toml: `pp` = 'x' is not legal\n  legal: a number\n"
    )


def test_wrong_input_is_one_object_on_stdout_under_json():
    found = errors_of(run("fail", "input", "--gpus", "8", "--json"))
    assert [(mistake["file"], mistake["key"], mistake["value"]) for mistake in found] == [("a.toml", "tp", 0), ("a.toml", "pp", "x")]
    assert all({"file", "key", "value", "legal", "hint"} <= set(mistake) for mistake in found)


def test_no_answer_exits_1():
    result = run("fail", "no", "--gpus", "8")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "nothing fits\n")


@pytest.mark.parametrize(
    ("what", "answer"),
    [("no", {"answer": "no", "why": "nothing fits"}), ("no-with-answer", {"plans": [], "nearest": {"tp": 8}})],
)
def test_no_answer_is_one_object_on_stdout_under_json(what, answer):
    result = run("fail", what, "--gpus", "8", "--json")
    assert (result.exit_code, json.loads(result.stdout), result.stderr) == (1, answer, "")


def test_ctrl_c_exits_130_without_a_traceback():
    result = run("fail", "interrupt", "--gpus", "8")
    assert result.exit_code == 130
    assert result.stderr.strip() == "interrupted"


def test_a_closed_pipe_is_not_the_answer_no():
    assert run("fail", "pipe", "--gpus", "8").exit_code == 141


@pytest.mark.parametrize(
    ("args", "key", "legal", "hint"),
    [
        (["fai"], "fai", "fail", "did you mean `fail`?"),
        (["fail", "--gpu", "8"], "--gpu", "--gpus, --nodes, --json, --help", "did you mean `--gpus`?"),
        (["fail"], "--gpus", "what `meshwright fail --help` lists", "see `meshwright fail --help`"),
        (["fail", "--gpus"], "--gpus", "what `meshwright fail --help` lists", "see `meshwright fail --help`"),
        (["fail", "a", "b", "--gpus", "8"], "fail", "what `meshwright fail --help` lists", "see `meshwright fail --help`"),
    ],
    ids=["command", "option", "missing", "no-value", "extra-argument"],
)
def test_usage_errors_have_the_form_of_all_mistakes(args, key, legal, hint):
    (mistake,) = errors_of(run(*args, "--json")) if args != ["fail", "--gpus"] else errors_of(run("fail", "--json", "--gpus"))
    assert mistake["file"] == "command line"
    assert mistake["key"] == key
    assert mistake["hint"] == hint
    assert mistake["legal"] == legal
    assert mistake["problem"]


def test_all_mistakes_of_a_command_line_are_told_together():
    found = errors_of(run("fail", "--gpus", "0", "--nodes", "-3", "--json", "--node"))
    assert [mistake["key"] for mistake in found] == ["--node"]  # click stops at an unknown option, before any value
    found = errors_of(run("fail", "--gpus", "0", "--nodes", "-3", "--json"))
    assert [(mistake["key"], mistake["value"]) for mistake in found] == [("--gpus", "0"), ("--nodes", "-3")]
    found = errors_of(run("fail", "--nodes", "nan", "--json"))
    assert {mistake["key"] for mistake in found} == {"--gpus", "--nodes"}


def test_no_arguments_show_the_help_and_exit_2(meshwright):
    result = meshwright()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: meshwright" in result.stderr


def test_version(meshwright):
    assert meshwright("--version").stdout == f"meshwright {package.__version__}\n"


def test_every_listed_command_is_a_command_of_ours_with_help_and_json(meshwright):
    names = cli.list_commands(click.Context(cli))
    assert names
    assert names == [name for name in COMMANDS if name in names]
    listing = meshwright("--help").stdout
    for name in names:
        assert f"\n  {name} " in listing
        result = meshwright(name, "--help")
        assert result.exit_code == 0
        assert "--json" in result.stdout


def test_a_verb_without_a_file_is_not_offered(monkeypatch, meshwright):
    monkeypatch.setattr("meshwright.cli.app.COMMANDS", (*COMMANDS, "fly"))
    assert "fly" not in meshwright("--help").stdout
    assert meshwright("fly").exit_code == 2


@pytest.mark.dist
def test_help_loads_nothing_heavy(fresh_python):
    """The time of --help is what it imports, and that can be tested without a clock."""
    code = """
import sys
from meshwright.cli.app import cli
try:
    cli.main(["--help"])
finally:
    sys.stderr.write(" ".join(sys.modules))
"""
    done = fresh_python("-c", code)
    assert done.returncode == 0
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "click" in loaded
    assert not loaded & {"numpy", "rich", "jinja2", "torch", "difflib", "hypothesis"}


@pytest.mark.dist
@pytest.mark.parametrize("args", [["--help"], ["catalog", "--help"], ["catalog", "models", "--json"]], ids=" ".join)
def test_a_reader_that_went_away_ends_it_quietly(args, fresh_python):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = fresh_python("-m", "meshwright", *args, capture_output=False, stdout=writer, stderr=-1)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.dist
def test_python_dash_m_is_the_same_program(fresh_python):
    done = fresh_python("-m", "meshwright", "--version")
    assert (done.returncode, done.stdout) == (0, f"meshwright {package.__version__}\n")
