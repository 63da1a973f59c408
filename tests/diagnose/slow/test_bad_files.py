"""Traces that are torn, empty, foreign or hostile among good ones: a line each, and the rest is judged."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from meshwright.diagnose.judge import diagnose
from synthetic_trace import write_trace

SPAN = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.0, "args": {"stream": 7}}


def bodies() -> dict[str, bytes]:
    good = json.dumps({"schemaVersion": 1, "traceEvents": [SPAN] * 100}).encode()
    return {
        "no spans": b'{"schemaVersion": 1, "traceEvents": []}',
        "a value without end": b'{"schemaVersion": 1, "x": "' + b"y" * 100_000,
        "not an object": b'{"schemaVersion": 1, "traceEvents": 7}',
        "deep": b'{"schemaVersion": 1, "x": ' + b"[" * 100_000,
        "torn gzip": gzip.compress(good)[:60],
        "not parquet": b"PAR1" + b"x" * 100,
    }


@pytest.mark.parametrize("kind", bodies())
def test_a_bad_file_costs_a_line(kind: str, tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    write_trace(tmp_path / "rank3.json", 1)
    (tmp_path / "bad").write_bytes(bodies()[kind])
    done = meshwright("diagnose", "--json", str(tmp_path))
    answer = json.loads(done.stdout)
    assert len(answer["notes"]) == 1 and "bad" in answer["notes"][0]
    assert answer["read"] == ["1 Kineto trace"] and answer["step"]["ranks"][0]["rank"] == 3


@pytest.mark.parametrize("kind", bodies())
def test_a_bad_file_alone_is_wrong_input(kind: str, tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    (tmp_path / "bad").write_bytes(bodies()[kind])
    done = meshwright("diagnose", str(tmp_path / "bad"))
    assert done.exit_code == 2 and "Traceback" not in done.output


def test_a_bomb_is_stopped(tmp_path: Path) -> None:
    """300 MB of blanks inside the list of events, from 300 KB."""
    write_trace(tmp_path / "rank3.json", 1)
    with gzip.open(tmp_path / "bomb.json.gz", "wb") as file:
        file.write(b'{"schemaVersion": 1, "traceEvents": [')
        for _ in range(300):
            file.write(b" " * (1 << 20))
    (note,) = diagnose([tmp_path]).notes
    assert "bomb" in note


def test_traces_of_another_job_are_told_and_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        body = {"distributedInfo": {"rank": rank, "world_size": 3}, "schemaVersion": 1, "traceEvents": [SPAN]}
        (tmp_path / f"{rank}.json").write_text(json.dumps(body), encoding="utf-8")
    other = {"distributedInfo": {"rank": 0, "world_size": 8}, "schemaVersion": 1, "traceEvents": [SPAN]}
    (tmp_path / "other.json").write_text(json.dumps(other), encoding="utf-8")
    told = [sentence for finding in diagnose([tmp_path]).findings for sentence in finding.evidence]
    assert sum("other.json: of another job" in sentence for sentence in told) == 1


def test_traces_in_archives_are_the_same_traces(tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    write_trace(plain / "rank3.json", 1)
    data = (plain / "rank3.json").read_bytes()
    (tmp_path / "rank3.json.gz").write_bytes(gzip.compress(data))
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("traces/rank3.json.gz")
        packed = gzip.compress(data)
        member.size = len(packed)
        tar.addfile(member, io.BytesIO(packed))
    forms = (plain, tmp_path / "rank3.json.gz", tmp_path / "all.tar.gz")
    answers = [json.loads(meshwright("diagnose", "--json", str(path)).stdout)["step"] for path in forms]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [%s]}', '[\n %s\n]', '[%s', '\ufeff{"schemaVersion": 1, "traceEvents": [%s]}',
        '{"deviceProperties": [{"id": 0}], "traceEvents": [%s]}',
    ],
)  # fmt: skip
def test_every_form_is_recognised_by_its_content(text: str, tmp_path: Path) -> None:
    event = json.dumps({"args": {"stream": 7}, "name": "k", "cat": "kernel", "ph": "X", "ts": 1.0, "dur": 2.0})
    (tmp_path / "anything").write_text(text % event, encoding="utf-8")
    assert diagnose([tmp_path]).read == ("1 Kineto trace",)
