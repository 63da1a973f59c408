"""Schedules from files: an own order is proved like the others; what is impossible is refused with rank, step and action, by ``prove`` as
by ``timeline``, and so is a layout whose stages or micro-batches cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.prove.question import Question
from meshwright.prove.run import prove
from meshwright.schedule import build, print_csv, read_csv, with_communication, write_csv
from pipeline_cases import read_pipeline_case
from proofs import RANKS, TIMEOUT_S

JOB = ("llama-3.1-8b", "--cluster", "h100-sxm", "--gpus", "2", "--seq", "4096", "--batch", "4", "--layout", "pp=2 dp=1x1 mb=1")
VERBS = ("timeline", "prove")

IMPOSSIBLE = {
    "a missing backward": ("0F0,0B0,0F1,,\n1F0,1B0,1F1,1B1\n", "rank 0, step 3", "0B1"),
    "a deadlock": ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "rank 0, step 1", "0B0"),
    "a backward before its forward": ("0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n", "rank 1, step 0", "1B0"),
    "a weight half without its input half": ("0F0,0W0,0B0\n1F0,1B0\n", "rank 0, step 1", "0W0"),
    "what is no action": ("0F0,0X0\n1F0,1B0\n", "rank 0, step 1", "0X0"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_order_is_refused_with_rank_step_and_action(meshwright, tmp_path: Path, name: str, verb: str):
    text, key, action = IMPOSSIBLE[name]
    file = tmp_path / "order.csv"
    file.write_text(text)
    result = meshwright(verb, *JOB, "--schedule", str(file), "--json")
    assert result.exit_code == 2
    errors = json.loads(result.stdout)["errors"]
    assert (key, action) in {(error["key"], error["value"]) for error in errors}
    assert {error["file"] for error in errors} == {str(file)}


@pytest.mark.parametrize("verb", VERBS)
def test_an_order_for_another_layout_is_refused(meshwright, tmp_path: Path, verb: str):
    file = tmp_path / "order.csv"
    write_csv(build("1f1b", 2, 1, 3), file)
    (error,) = json.loads(meshwright(verb, *JOB, "--schedule", str(file), "--json").stdout)["errors"]
    assert (error["key"], error["value"], error["legal"]) == ("micro-batches", 3, "4")
    write_csv(build("zb-v", 2, 2, 4), file)
    job = (*JOB[:-1], "pp=2:interleaved*2 dp=1x1 mb=1")
    (error,) = json.loads(meshwright(verb, *job, "--schedule", str(file), "--json").stdout)["errors"]
    assert (error["key"], error["value"], error["legal"]) == ("rank of chunk 2", 1, "0")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("layout", "key"), [("pp=64 dp=1x1 mb=1", "pp"), ("pp=4:dualpipe dp=1x1 mb=1", "pp"), ("pp=4:interleaved*2 dp=1x1 mb=2", "pp")],
    ids=["more stages than layers", "too few micro-batches", "micro-batches not in rounds"],
)  # fmt: skip
def test_what_no_schedule_can_do_is_refused(meshwright, layout: str, key: str, verb: str):
    job = (
        "llama-3.1-8b",
        "--cluster",
        "h100-sxm",
        "--gpus",
        layout.split("=")[1].split(":")[0].split()[0],
        "--seq",
        "4096",
        "--batch",
        "4",
    )
    result = meshwright(verb, *job, "--layout", layout, "--json")
    assert result.exit_code == 2
    assert key in {error["key"] for error in json.loads(result.stdout)["errors"]}


def test_a_file_in_the_place_of_the_layouts_order_is_simulated(meshwright, tmp_path: Path):
    """All forwards first, as gpipe has them, in a layout that says 1f1b."""
    file = tmp_path / "gpipe.csv"
    write_csv(build("gpipe", 2, 1, 4), file)
    from_file = json.loads(meshwright("timeline", *JOB, "--schedule", str(file), "--json").stdout)
    by_word = json.loads(meshwright("timeline", *JOB[:-1], "pp=2:gpipe dp=1x1 mb=1", "--json").stdout)
    assert from_file["step_s"] == by_word["step_s"]
    assert [rank["in_flight"] for rank in from_file["ranks"]] == [4, 4]


@pytest.mark.dist
def test_an_order_that_no_word_says_is_proved(warm, tmp_path: Path):
    """Zero-bubble's order with the first stage's weight halves in reverse, its messages written out in the file."""
    right = with_communication(build("zb-h2", 2, 1, 4))
    halves = [action for action in right.actions[0] if str(action)[1] == "W"]
    reverse = iter(reversed(halves))
    kept = [action for action in right.actions[0] if action not in halves]
    own = replace(right, actions=((*kept, *reverse), right.actions[1]))
    file = tmp_path / "own.csv"
    file.write_text(print_csv(own))
    case = read_pipeline_case("llama seq=8 m=4 - pp=2:zb-h2 dp=1x2 zero=2 mb=1")
    question = Question(
        model=case.model, workload=case.workload, layout=case.layout, ranks=RANKS, timeout_s=TIMEOUT_S, schedule=read_csv(file)
    )
    certificate = prove(question, warm)
    assert certificate.passed, certificate.text()
    assert f"the order of the stages is that of {file}" in certificate.text()
    by_word = replace(question, schedule=None)
    assert prove(by_word, warm).predicted == certificate.predicted, "the same calls in another order"
