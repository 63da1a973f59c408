"""Files that are torn, empty, foreign or made to do harm: a line each, the rest analysed, nothing executed."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import struct
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from dumps import WORLD, dump, entry
from meshwright.cli.app import cli
from meshwright.diagnose.judge import diagnose
from meshwright.errors import InputError
from meshwright.recording.events import Event, Group, Header
from meshwright.recording.write import RecordingWriter


class Payload:
    """Runs a command when it is unpickled by pickle.load."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def good_dumps(folder: Path) -> None:
    """Three ranks of which rank 1 has not come."""
    waiting = dump({WORLD: range(3)}, [entry(WORLD, "all_reduce", 9, 9)], {"0": (9, 8)})
    for rank, content in {0: waiting, 1: dump({WORLD: range(3)}, [], {"0": (8, 8)}), 2: waiting}.items():
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(content, protocol=2))


def memo_bomb() -> bytes:
    """A memo index near 2^31, for which the C unpickler would allocate and clear 32 GB."""
    return b"\x80\x02}r" + struct.pack("<I", 0x7FFFFFF0) + b"."


HOSTILE = {
    "payload_3": lambda mark: pickle.dumps({"entries": [Payload(mark)], "version": "2.9"}),
    "memo_4": lambda mark: memo_bomb(),
    "persistent_5": lambda mark: b"\x80\x02Pcode\n.",
    "torn_6": lambda mark: pickle.dumps(dump({WORLD: range(3)}, [entry(WORLD, "all_reduce", 9, 9)], {}))[:200],
    "empty_7": lambda mark: b"",
    "bomb_8.json.gz": lambda mark: gzip.compress(b'{"entries": [' + b" " * (100 << 20)),
    "torn_9.json.gz": lambda mark: gzip.compress(b'{"entries": []}' * 10_000)[:-40],
    "nested_10.json": lambda mark: b'{"entries": ' + b"[" * 200_000,
    "invalid_11.json": lambda mark: b'{"pg_config": {, "entries": nonsense',
    "wrong_12.json": lambda mark: json.dumps({"entries": {"a": 1}, "pg_config": [], "version": "2.9"}).encode(),
    "old_13.json": lambda mark: json.dumps({"entries": [], "pg_config": {}, "version": "1.4"}).encode(),
    "picture_14.png": lambda mark: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40,
    "text_15.md": lambda mark: b"# Notes\nnothing here\n",
    "recording_16.jsonl": lambda mark: b'{"schema": "meshwright.recording/1", "rank": "sixteen"}\n',
    "members_18.json": lambda mark: json.dumps(dump({WORLD: [0, 999_999_999]}, [], {})).encode(),
    "recording_19.jsonl": lambda mark: b'{"schema":"meshwright.recording/1","rank":0,"world_size":1000000000000}\n',
    "recording_20.jsonl": lambda mark: b'{"schema":"meshwright.recording/1","x":' + b"[" * 100_000,
    "name\nwith a line break_17": lambda mark: b"\0\1\2",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_file_costs_one_line(name: str, tmp_path: Path) -> None:
    good_dumps(tmp_path)
    alone = diagnose([tmp_path])
    (tmp_path / name).write_bytes(HOSTILE[name](tmp_path / "executed"))
    diagnosis = diagnose([tmp_path])
    assert diagnosis.findings == alone.findings and diagnosis.findings[0].ranks == (1,)
    assert len(diagnosis.notes) == 1 and diagnosis.notes[0].isprintable()
    assert not (tmp_path / "executed").exists()


def test_the_payload_would_have_run(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb_8.json.gz"
    bomb.write_bytes(HOSTILE[bomb.name](tmp_path))
    tracemalloc.start()
    with pytest.raises(InputError, match="gzip bomb"):
        diagnose([bomb])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 << 20  # 64 MiB are let through before the ratio counts, and parts of them are held twice


def test_nothing_that_can_be_read_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "empty_7").write_bytes(b"")
    (tmp_path / "text_15.md").write_bytes(b"# Notes\n")
    done = CliRunner().invoke(cli, ["diagnose", str(tmp_path), "--json"])
    assert done.exit_code == 2
    assert [Path(mistake["file"]).name for mistake in json.loads(done.stdout)["errors"]] == ["empty_7", "text_15.md"]


def test_pipes_and_missing_files_do_not_block(tmp_path: Path) -> None:
    good_dumps(tmp_path)
    os.mkfifo(tmp_path / "pipe_4")
    diagnosis = diagnose([tmp_path, tmp_path / "nowhere"])
    assert [note.rpartition(": ")[2] for note in diagnosis.notes] == ["is not a regular file", "does not exist"]


def test_an_archive_is_read_where_it_lies(tmp_path: Path) -> None:
    good_dumps(tmp_path)
    archive = tmp_path / "all.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for rank in range(3):
            info = tarfile.TarInfo(f"../../dump_{rank}")  # a name that would leave the folder if it were unpacked
            content = (tmp_path / f"dump_{rank}").read_bytes()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    assert diagnose([archive]).findings[0].ranks == (1,)
    archive.write_bytes(archive.read_bytes()[:-30])
    assert any("torn or damaged" in note for note in diagnose([tmp_path]).notes)


def test_files_of_two_jobs_are_not_mixed(tmp_path: Path) -> None:
    good_dumps(tmp_path)
    other = dump({WORLD: range(16)}, [entry(WORLD, "broadcast", 9, 9)], {"0": (9, 8)})
    (tmp_path / "other_2").write_bytes(pickle.dumps(other, protocol=2))
    diagnosis = diagnose([tmp_path])
    assert diagnosis.findings[0].ranks == (1,)
    assert any("another job, of 16 ranks" in note for note in diagnosis.notes)


def test_a_recording_that_ends_in_the_middle_of_a_line_says_so(tmp_path: Path) -> None:
    group = Group(name="dp.0", axis="dp", ranks=(0, 1, 2))
    for rank in range(3):
        with RecordingWriter(tmp_path, Header(world_size=3, rank=rank, groups=(group,))) as writer:
            for index in range(2 if rank != 1 else 1):
                writer.event(Event(index=index, kind="collective", op="all_reduce", group="dp.0", seq=index, dtype="float32", shape=(4,)))
                if index == 0:
                    writer.completed(0, None, 1.0)
    with (tmp_path / "rank_00001.jsonl").open("a") as torn:
        torn.write('{"index": 1, "kind": "coll')
    headline = diagnose([tmp_path]).findings[0]
    assert (headline.code, headline.ranks) == ("missing-rank", (1,))
    assert "rank 1: its file ends in the middle of a line" in headline.evidence


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_never_end_the_program(seed: int, tmp_path: Path) -> None:
    good_dumps(tmp_path)
    pick = random.Random(seed)
    content = bytearray((tmp_path / "dump_2").read_bytes())
    for _ in range(pick.randrange(1, 8)):
        content[pick.randrange(2, len(content))] = pick.randrange(256)
    (tmp_path / "dump_2").write_bytes(content[: pick.randrange(3, len(content) + 1)])
    assert diagnose([tmp_path]).read


def test_a_name_that_is_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="File name too long"):
        diagnose([tmp_path / ("x" * 5000)])
