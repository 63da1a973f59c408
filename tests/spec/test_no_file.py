"""Pipes, sockets and devices with the names of files: refused at once, where a reader would wait for ever."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from meshwright.errors import InputError
from meshwright.recording.progress import read_progress
from meshwright.recording.read import read_recordings
from meshwright.spec.files import open_regular, read_text

JOB = ("--cluster", "h100-sxm", "--gpus", "8", "--layout", "pp=2", "--seq", "512", "--batch", "64")


@pytest.mark.parametrize(
    "words",
    [
        ("lint", "{}.json"), ("lint", "{}.sh"), ("plan", "{}.json", *JOB[:4]),
        ("plan", "llama-3.1-8b", "--cluster", "{}.toml", "--gpus", "8"),
        ("estimate", "{}.toml"), ("estimate", "llama-3.1-8b", *JOB, "--stack", "{}.toml"), ("validate", "{}.csv"),
        ("timeline", "llama-3.1-8b", *JOB, "--schedule", "{}.csv"), ("diagnose", "{}.jsonl"), ("diagnose", "{}.log"),
        ("calibrate", "{}.jsonl", "--output", "x.toml", "--cluster", "h100-sxm"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_verb_waits_for_a_pipe(words: tuple[str, ...], tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    pipe = next(word for word in words if "{}" in word).format(tmp_path / "pipe")
    os.mkfifo(pipe)
    done = meshwright(*(word.format(tmp_path / "pipe") for word in words))
    assert done.exit_code == 2 and "regular file" in done.output, done.output


def test_a_pipe_among_recordings_and_progress(tmp_path: Path) -> None:
    for name in ("rank_00000.jsonl", "progress_00000.json"):
        os.mkfifo(tmp_path / name)
    assert read_progress(tmp_path) == []
    with pytest.raises(InputError, match="no regular file"):
        read_recordings(tmp_path)


def test_sockets_and_devices_are_no_files(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "a.json"))
        with pytest.raises(InputError, match="cannot be read"):
            read_text(tmp_path / "a.json", "a JSON file")
    with pytest.raises(InputError, match="no regular file"):
        read_text(Path("/dev/zero"), "a JSON file")


def test_what_a_shell_hands_over_is_read(tmp_path: Path) -> None:
    """``<(jq ...)`` is a pipe that is open already, and named by its number."""
    read, write = os.pipe()
    os.write(write, b"{}")
    os.close(write)
    with open_regular(Path(f"/dev/fd/{read}")) as stream:
        assert stream.read() == b"{}"
    os.close(read)


@pytest.mark.parametrize(
    "words", [("watch", "{}"), ("timeline", "llama-3.1-8b", *JOB, "--recording", "{}"), ("diagnose", "{}")], ids=" ".join
)
def test_a_name_that_no_file_system_takes(words: tuple[str, ...], meshwright: Callable[..., Result]) -> None:
    done = meshwright(*(word.format("x" * 5000) for word in words))
    assert done.exit_code == 2 and len(done.output) < 2000
