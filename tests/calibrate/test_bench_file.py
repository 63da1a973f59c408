"""Our own measurements are written, read back and fitted; a file with a mistake is refused with its line."""

import json
import os
import subprocess
import sys

import pytest

from meshwright.calibrate.bench_file import OPS, SCHEMA, parse
from meshwright.calibrate.network import Point, fit
from meshwright.errors import InputError

HEADER = {"schema": SCHEMA, "backend": "gloo", "device": "cpu", "torch": "2.13.0"}
ROWS = [{"op": "all_reduce", "ranks": 4, "nodes": 1, "payload_bytes": 1 << k, "time_s": 1e-5 + 1e-9 * 2**k} for k in (10, 16, 22, 28)]


def text(header=HEADER, rows=ROWS) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in [header, *rows])


def refused(content: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse(content, "bench.jsonl")
    return [mistake.key for mistake in caught.value.mistakes]


def test_reads_points_with_their_lines():
    points = parse(text(), "bench.jsonl")
    assert points[0] == Point("all_reduce", 4, 1024, pytest.approx(1.1024e-5), 1, "bench.jsonl:2")
    assert len(points) == 4
    assert fit(points, "ring").curve.bandwidth_bytes_per_s == pytest.approx(1.5e9, rel=1e-3)  # 2 (4-1)/4 M in 1e-9 M


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"time_s": -1e-6}, "line 3: time_s"),
        ({"time_s": 0}, "line 3: time_s"),
        ({"time_s": "20us"}, "line 3: time_s"),
        ({"payload_bytes": 0}, "line 3: payload_bytes"),
        ({"ranks": 1}, "line 3: ranks"),
        ({"op": "allreduce"}, "line 3: op"),
        ({"busbw": 3}, "line 3: busbw"),
    ],
    ids=lambda value: str(value),
)
def test_a_wrong_value_is_refused_with_its_line(change, key):
    assert refused(text(rows=[ROWS[0], {**ROWS[1], **change}, *ROWS[2:]])) == [key]


def test_lines_that_are_no_objects_are_refused_together():
    assert refused(text() + "[1, 2]\nnan\n{oops\n") == ["line 6", "line 7", "line 8"]


@pytest.mark.parametrize("content", ["", text(rows=[])])
def test_nothing_measured_is_refused(content):
    assert refused(content) == [""]


def test_another_file_is_refused_by_its_header():
    assert "line 1: schema" in refused(text(header={"schema": "other/2"}))


@pytest.mark.dist
def test_what_the_bench_writes_is_read_and_fitted():
    from bench_ranks import bench_text
    from meshwright.runtime.launch import run_ranks

    sizes = [1 << k for k in (10, 14, 18, 20)]
    first, second = run_ranks(bench_text, 2, (sizes,))
    points = parse(first, "bench.jsonl")
    assert parse(second, "bench.jsonl") == points
    assert [(p.op, p.ranks, p.nodes, p.payload_bytes) for p in points] == [(op, 2, 1, size) for size in sizes for op in OPS]
    for op, algorithm in zip(OPS, ["ring", "ring", "ring", "pairwise"], strict=True):
        assert fit([p for p in points if p.op == op], algorithm).curve.bandwidth_bytes_per_s > 0


@pytest.mark.dist
def test_two_hosts_are_measured_inside_and_across():
    from bench_ranks import bench_two_hosts
    from meshwright.runtime.launch import run_ranks

    points = parse(run_ranks(bench_two_hosts, 4, ([1024],))[0], "bench.jsonl")
    assert [(p.op, p.ranks, p.nodes) for p in points] == [(op, 2, 1) for op in OPS] + [(op, 4, 2) for op in OPS]


@pytest.mark.dist
def test_the_command_measures_under_torchrun_and_calibrate_reads_it(meshwright, tmp_path):
    file = tmp_path / "bench.jsonl"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "meshwright"]
    options = ["bench-collectives", "-o", str(file), "--rounds", "1", "--largest", "64KiB", "--json"]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)), OMP_NUM_THREADS="1")
    done = subprocess.run([*torchrun, *options], capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"file": str(file), "points": 7 * len(OPS)}  # 1 to 64 KiB in powers of two
    assert len(parse(file.read_text(), "bench.jsonl")) == 7 * len(OPS)
    result = meshwright("calibrate", str(file), "--cluster", "l40s", "-o", str(tmp_path / "mine.toml"))
    assert result.exit_code == 0, result.output


def test_the_command_by_itself_says_how_it_is_started(meshwright, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    result = meshwright("bench-collectives", "-o", "bench.jsonl")
    assert result.exit_code == 2
    assert "torchrun --nproc-per-node 8 -m meshwright bench-collectives" in result.stderr


def test_a_line_that_is_nested_without_end_is_refused():
    assert refused(text() + '{"op": ' * 100_000 + "\n") == ["line 6"]
