"""``validate`` and ``calibrate`` of runs, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from meshwright.api import hash_of
from meshwright.cli.app import cli
from meshwright.job import Asked, resolve
from meshwright.spec.load_stack import load_stack
from meshwright.spec.plan_file import load_plan, plan_hash

ROWS = """id,model,cluster,gpus,layout,seq,batch,stack,step_s,memory_gib
a,llama-3.1-70b,h100-sxm,64,tp=8 sp dp=1x8 zero=1 mb=1,8192,64,megatron,9.0,60
b,llama-3.1-70b,h100-sxm,64,tp=4 sp pp=2 dp=1x8 zero=1 mb=1,8192,64,megatron,8.2,
c,llama-3.1-70b,h100-sxm,64,dp=1x64 zero=3 mb=1,8192,64,megatron,8.9,
d,llama-3.1-70b,h100-sxm,64,tp=2 sp pp=4 dp=1x8 zero=1 mb=1,8192,64,megatron,8.1,
e,llama-3.1-70b,h100-sxm,63,dp=1x64 zero=3 mb=1,8192,64,megatron,9.9,
"""


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words, prog_name="meshwright")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(ROWS)
    return path


def test_json_has_the_stable_keys(runs: Path) -> None:
    found = json.loads(run("validate", str(runs), "--json").stdout)
    assert [one["id"] for one in found["runs"]] == ["a", "a", "b", "c", "d"]
    for one in found["runs"]:
        assert one["error"] == pytest.approx(one["predicted"] / one["measured"] - 1, rel=1e-12)
        assert one["low"] < one["predicted"] < one["high"]
    assert [one["metric"] for one in found["runs"]] == ["step_s", "memory_bytes", "step_s", "step_s", "step_s"]
    assert found["skipped"] == [{"id": "e", "why": "gpus = 63 but the layout has 64 ranks"}]
    assert {"count", "mape", "median", "p90", "worst"} <= found["summary"].keys()
    assert found["summary"]["count"] == 4  # a run's time is judged once


def test_the_text_says_the_same(runs: Path) -> None:
    text = run("validate", str(runs)).stdout
    for words in ("90 % range", "time, by source", "not judged", "gpus = 63 but the layout has 64 ranks"):
        assert words in text


def test_calibrated_on_some_runs_of_each_source(runs: Path) -> None:
    found = json.loads(run("validate", str(runs), "--calibrate", "3", "--seed", "1", "--json").stdout)
    after = found["calibrated"]
    assert len(after) in (1, 2) and len({one["id"] for one in after}) == 1
    assert found["summary"]["calibrated"]["runs"] == 3
    before = next(one for one in found["runs"] if one["id"] == after[0]["id"] and one["metric"] == "step_s")
    now = next(one for one in after if one["metric"] == "step_s")
    assert now["high"] / now["low"] < before["high"] / before["low"]


def test_a_calibrated_stack_is_used_by_plan(runs: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    made = run("calibrate", str(runs), "-o", str(mine), "--json")
    assert made.exit_code == 0, made.output
    answer = json.loads(made.stdout)
    assert answer["runs"] == ["a", "b", "c", "d"] and answer["base"] == "megatron" and answer["error"] <= answer["error_before"]
    asked = ("llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "64", "--seq", "8192", "--batch", "64")
    plan = run("plan", *asked, "--constraint", "pp=1,cp=1,tp=8", "--stack", str(mine), "--save", str(tmp_path / "plan.toml"), "--json")
    assert plan.exit_code == 0, plan.output
    layout = json.loads(plan.stdout)["plans"][0]["layout"]
    seconds = [json.loads(run("estimate", str(tmp_path / "plan.toml"), "--json").stdout)["step_s"]]
    for stack in (str(mine), "megatron"):
        seconds.append(json.loads(run("estimate", *asked, "--layout", layout, "--stack", stack, "--json").stdout)["step_s"])
    assert seconds[0] == seconds[1] != seconds[2]


@pytest.mark.parametrize(
    "words", [("validate", "none.csv"), ("validate", "x.csv", "--calibrate", "0"), ("calibrate", "none.csv", "-o", "x.toml")]
)
def test_wrong_input_exits_with_2(words: tuple[str, ...]) -> None:
    found = run(*words)
    assert found.exit_code == 2
    assert "Traceback" not in found.output


def test_calibrate_does_not_write_over_its_runs(runs: Path) -> None:
    result = run("calibrate", str(runs), "-o", str(runs))
    assert result.exit_code == 2 and "ending in .toml" in result.stderr and runs.read_text() == ROWS


def test_a_plan_holds_what_was_in_the_file_of_its_stack(runs: Path, tmp_path: Path) -> None:
    """Its hash covers the constants, and it stays what it was when the file changes or is gone."""
    mine, saved = tmp_path / "mine.toml", tmp_path / "plan.toml"
    assert run("calibrate", str(runs), "-o", str(mine)).exit_code == 0
    job = ("llama-3.1-8b", "--cluster", "h100-sxm", "--gpus", "8", "--seq", "4096", "--batch", "32", "--constraint", "pp=1,cp=1")
    made = run("plan", *job, "--stack", str(mine), "--save", str(saved), "--json")
    assert made.exit_code == 0, made.output
    plan = load_plan(saved)
    assert plan.stack == str(mine) and plan.calibrated == load_stack(mine)
    before = json.loads(run("estimate", str(saved), "--json").stdout)["step_s"]
    assert before == json.loads(made.stdout)["plans"][0]["step_s"]

    other = mine.read_text(encoding="utf-8").replace("level = ", "level = 1.25 # ")
    mine.write_text(other, encoding="utf-8")
    assert json.loads(run("estimate", str(saved), "--json").stdout)["step_s"] == before
    beside = json.loads(run("estimate", str(saved), "--stack", str(mine), "--json").stdout)["step_s"]
    assert beside != before  # what is said goes before what the plan holds
    again = Path(tmp_path / "again.toml")
    assert run("plan", *job, "--stack", str(mine), "--save", str(again)).exit_code == 0
    assert plan_hash(load_plan(again)) != plan_hash(plan)
    mine.unlink()
    assert json.loads(run("estimate", str(saved), "--json").stdout)["step_s"] == before

    edited = saved.read_text(encoding="utf-8").replace("level = ", "level = 1.25 # ")
    saved.write_text(edited, encoding="utf-8")
    assert "does not fit the rest of the file" in run("estimate", str(saved)).stderr


def test_the_hash_of_a_proof_is_that_of_its_plan(runs: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.toml"
    job = ("llama-3.1-8b", "--cluster", "h100-sxm", "--gpus", "8", "--seq", "4096", "--batch", "32", "--constraint", "pp=1,cp=1")
    assert run("plan", *job, "--stack", "torchtitan", "--save", str(saved)).exit_code == 0
    assert hash_of(resolve(Asked(subject=saved, source="a test"))) == plan_hash(load_plan(saved))
