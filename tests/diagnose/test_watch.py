"""A rank that is stopped is named while the job is still alive; ranks that only wait are not."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from meshwright.cli.app import cli
from meshwright.diagnose.watch import Watcher
from meshwright.recording.progress import GroupProgress, Progress, parse_progress, read_progress, write_progress
from stopped_rank import RANKS, run


def progress(rank: int, enqueued: int, completed: int, written_s: float = 0.0) -> Progress:
    group = GroupProgress(name="dp.0", axis="dp", ranks=(0, 1, 2), enqueued=enqueued, completed=completed)
    return Progress(rank=rank, world_size=3, written_s=written_s, interval_s=1.0, host="node1", pid=rank, calls=enqueued, groups=(group,))


def test_a_rank_that_runs_and_is_waited_for(tmp_path: Path) -> None:
    """Rank 1 goes on writing, as under a lock that its threads do not need."""
    watcher = Watcher()
    for now_s in range(6):
        files = [progress(0, 9, 8, now_s), progress(1, 8, 8, now_s), progress(2, 9, 8, now_s)]
        behind = watcher.look(files, float(now_s))
        assert bool(behind) == (now_s > 3)
    assert [(each.rank, each.kind) for each in behind] == [(1, "waited for")]
    assert "ranks 0 and 2 wait for it in collective 9 of dp.0" in behind[0].message


def test_a_job_that_moves_has_nobody_behind() -> None:
    watcher = Watcher()
    for now_s in range(10):
        files = [progress(rank, 10 * now_s + (rank == 0), 10 * now_s, now_s) for rank in range(3)]
        assert watcher.look(files, float(now_s)) == []


def test_a_rank_that_never_wrote_is_missing() -> None:
    watcher = Watcher()
    for now_s in range(5):
        behind = watcher.look([progress(0, 1, 0, now_s), progress(2, 1, 0, now_s)], float(now_s))
    assert [(each.rank, each.kind) for each in behind] == [(1, "missing")]


def test_ranks_that_are_done_are_not_behind() -> None:
    watcher = Watcher()
    for now_s in range(10):
        files = [replace(progress(rank, 9, 9), ended=rank != 1) for rank in range(3)]
        behind = watcher.look(files, float(now_s))
    assert [(each.rank, each.kind) for each in behind] == [(1, "silent")]
    assert watcher.look([replace(progress(rank, 9, 9), ended=True) for rank in range(3)], 20.0) == []


def test_a_job_that_is_done_ends_the_watch(tmp_path: Path) -> None:
    for rank in range(3):
        write_progress(tmp_path, replace(progress(rank, 9, 9), ended=True))
    done = CliRunner().invoke(cli, ["watch", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "all ranks are done\n")


def test_files_are_read_back_and_torn_ones_left_out(tmp_path: Path) -> None:
    there = progress(1, 5, 4)
    write_progress(tmp_path, there)
    write_progress(tmp_path, replace(there, rank=2))
    (tmp_path / "progress_00002.json").write_text('{"schema": "meshwright.prog')
    assert read_progress(tmp_path) == [there]
    assert parse_progress(tmp_path / "progress_00009.json") is None


@pytest.mark.parametrize(
    "damage",
    [
        {"rank": "a"}, {"rank": None}, {"rank": -1}, {"rank": 3}, {"world_size": 10**12}, {"written_s": float("nan")}, {"interval_s": 0},
        {"calls": "many"}, {"step": "last"}, {"groups": {"a": 1}}, {"groups": [1]}, {"groups": [{"name": [], "axis": "dp", "ranks": [0]}]},
        {"groups": [{"name": "dp", "axis": "dp", "ranks": ["a", None]}]}, {"schema": "meshwright.progress/9"},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_file_is_left_out(tmp_path: Path, damage: dict[str, object]) -> None:
    write_progress(tmp_path, progress(0, 5, 4))
    path = tmp_path / "progress_00001.json"
    path.write_text(json.dumps({**json.loads((tmp_path / "progress_00000.json").read_text()), **damage}))
    assert read_progress(tmp_path) == [progress(0, 5, 4)]
    path.write_text("[" * 100_000)
    assert read_progress(tmp_path) == [progress(0, 5, 4)]


def test_a_folder_without_progress_is_wrong_input(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["watch", str(tmp_path)])
    assert done.exit_code == 2 and "progress_*.json" in done.stderr


@pytest.mark.dist
def test_a_stopped_rank_is_named_while_the_others_wait(tmp_path: Path) -> None:
    from meshwright.runtime.launch import run_ranks

    job = threading.Thread(target=run_ranks, args=(run, RANKS, (str(tmp_path),)), kwargs={"timeout_s": 100.0})
    job.start()
    while len(read_progress(tmp_path)) < RANKS or min(each.calls for each in read_progress(tmp_path)) < 3:
        time.sleep(0.05)
    assert CliRunner().invoke(cli, ["watch", str(tmp_path), "--every", "1", "--patience", "3", "--for", "2"]).exit_code == 0
    pid = read_progress(tmp_path)[2].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        done = CliRunner().invoke(cli, ["watch", str(tmp_path), "--every", "1", "--patience", "3"])
    finally:
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "end").touch()
        job.join()
    assert done.exit_code == 1
    assert done.stdout.startswith(f"rank 2 (process {pid} on ") and len(done.stdout.splitlines()) == 1
    assert "ranks 0, 1, 3 wait for it in collective" in done.stdout


def test_progress_beside_recordings_is_not_told_as_foreign(tmp_path: Path) -> None:
    write_progress(tmp_path, progress(1, 5, 4))
    (tmp_path / "other.json").write_text("{}")
    done = CliRunner().invoke(cli, ["diagnose", str(tmp_path)])
    assert "other.json" in done.output and "progress_00001" not in done.output
