"""The command's words: exit codes, JSON, the report, the script, and what to collect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dumps import write_tp_dp_job
from meshwright.cli.app import cli


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    folder.mkdir()
    write_tp_dp_job(folder, tp=2, dp=2, calls=3, culprit=1)
    return folder


def call(*words: object) -> Result:
    return CliRunner().invoke(cli, ["diagnose", *map(str, words)])


def test_a_fault_in_json(hung: Path) -> None:
    done = call(hung, "--json")
    answer = json.loads(done.stdout)
    assert done.exit_code == 1 and answer["verdict"] == "fault"
    headline = answer["findings"][0]
    assert {"code", "title", "ranks", "group", "collective", "evidence", "remedy", "confidence"} <= set(headline)
    assert (headline["code"], headline["ranks"], headline["collective"]) == ("missing-rank", [1], "all_reduce 3")


def test_a_healthy_job_exits_with_0(tmp_path: Path) -> None:
    write_tp_dp_job(tmp_path, tp=2, dp=2, calls=3, culprit=1)
    for path in tmp_path.iterdir():
        if path.name != "dump_1":
            path.unlink()  # rank 1 is known to have completed all that it enqueued, and nobody is there to wait for it
    done = call(tmp_path)
    assert done.exit_code == 0 and "nothing wrong found" in done.stdout


def test_text_report_and_script(hung: Path, tmp_path: Path) -> None:
    done = call(hung, "-o", tmp_path / "report.html", "--repro", tmp_path / "repro.py")
    assert done.exit_code == 1
    assert "Rank 1 never came to all_reduce 3" in done.stdout and "verdict: fault found" in done.stdout
    assert "Rank 1 never came to all_reduce 3" in (tmp_path / "report.html").read_text()
    compile((tmp_path / "repro.py").read_text(), "repro.py", "exec")


def test_a_fault_that_no_script_can_show_is_told_all_the_same(tmp_path: Path) -> None:
    write_tp_dp_job(tmp_path, tp=2, dp=2, calls=3, culprit=1)
    (tmp_path / "dump_1").unlink()
    (tmp_path / "dump_2").unlink()
    (tmp_path / "dump_3").unlink()
    done = call(tmp_path, "--repro", tmp_path / "repro.py")
    assert done.exit_code == 1 and "no script can show this" in done.stderr and not (tmp_path / "repro.py").exists()


def test_what_to_collect_needs_no_files() -> None:
    done = call("--what-to-collect")
    assert done.exit_code == 0 and "TORCH_FR_BUFFER_SIZE" in done.stdout
    assert json.loads(call("--what-to-collect", "--json").stdout)["what_to_collect"]


def test_no_files_is_wrong_input() -> None:
    done = call()
    assert done.exit_code == 2 and "--what-to-collect" in done.stderr
