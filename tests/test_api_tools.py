"""The verbs that need no job: each function answers what its command prints with --json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import meshwright as mw
from meshwright.calibrate.bench_file import SCHEMA
from meshwright.cli.output import plain
from meshwright.collectives.report import CollectiveReport
from meshwright.errors import InputError
from meshwright.recording.progress import Progress, write_progress

RUNS = """id,model,cluster,gpus,layout,seq,batch,stack,step_s,memory_gib
a,llama-3.1-8b,h100-sxm,8,tp=8 sp dp=1 zero=1 mb=1,4096,64,megatron,9.0,60
b,llama-3.1-8b,h100-sxm,8,tp=2 sp dp=1x4 zero=1 mb=1,4096,64,megatron,7.9,
c,llama-3.1-8b,h100-sxm,9,tp=2 sp dp=1x4 zero=1 mb=1,4096,64,megatron,7.9,
"""

BENCH = [
    {"schema": SCHEMA, "backend": "nccl", "device": "NVIDIA H100 80GB HBM3", "torch": "2.13.0"},
    *(
        {"op": "all_reduce", "ranks": 8, "nodes": 1, "payload_bytes": 1 << k, "time_s": 2e-5 + 4e-12 * 2**k}
        for k in range(10, 31, 2)
    ),
]  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(RUNS, encoding="utf-8")
    return path


def printed(result: Result) -> Any:
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def in_json(answer: Any) -> Any:
    """As the command prints it."""
    return json.loads(json.dumps(plain(answer.as_json() if hasattr(answer, "as_json") else answer), allow_nan=False))


@pytest.mark.parametrize("kind", ["models", "clusters", "devices"])
def test_catalog(kind: Any, meshwright: Callable[..., Result]) -> None:
    assert printed(meshwright("catalog", kind, "--json")) == {kind: in_json(mw.catalog(kind))}


def test_validate(runs: Path, meshwright: Callable[..., Result]) -> None:
    found = mw.validate(runs, without_source=True)
    assert in_json(found) == printed(meshwright("validate", str(runs), "--without-source", "--json"))
    assert [run.id for run in found.skipped] == ["c"]
    assert in_json(mw.validate(str(runs), calibrate=1, seed=3)) == printed(
        meshwright("validate", str(runs), "--calibrate", "1", "--seed", "3", "--json")
    )


def test_calibrate_a_stack(runs: Path, tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    mine, theirs = tmp_path / "mine.toml", tmp_path / "theirs" / "mine.toml"
    theirs.parent.mkdir()
    answer = printed(meshwright("calibrate", str(runs), "-o", str(theirs), "--json"))
    found = mw.calibrate(runs, output=mine)
    assert {"stack": str(theirs), **in_json(found)} == answer
    assert mine.read_text(encoding="utf-8") == theirs.read_text(encoding="utf-8") == found.text
    assert mw.calibrate(str(runs)).changed == found.changed  # without a file to write


def test_calibrate_a_cluster(tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    bench, mine, theirs = tmp_path / "bench.jsonl", tmp_path / "pod.toml", tmp_path / "theirs" / "pod.toml"
    theirs.parent.mkdir()
    bench.write_text("".join(json.dumps(row) + "\n" for row in BENCH), encoding="utf-8")
    answer = printed(meshwright("calibrate", str(bench), "-o", str(theirs), "--cluster", "h100-sxm", "--json"))
    assert {"cluster": str(theirs), **in_json(mw.calibrate(bench, output=mine, cluster="h100-sxm"))} == answer
    assert mine.read_text(encoding="utf-8") == theirs.read_text(encoding="utf-8")


def test_collectives(meshwright: Callable[..., Result]) -> None:
    asked = ("--ranks", "16", "--cluster", "h100-sxm", "--size", "1MiB", "--json")
    (one,) = mw.collectives("all_gather", ranks=16, cluster="h100-sxm", size=1 << 20)
    assert isinstance(one, CollectiveReport) and in_json(one) == printed(meshwright("collectives", "all_gather", *asked))
    every = mw.collectives(ranks=16, cluster="h100-sxm", size=1 << 20)
    assert {"collectives": [in_json(each) for each in every]} == printed(meshwright("collectives", *asked))
    shown = mw.collectives("all_reduce", show=True, ranks=4, algorithm="tree")
    assert in_json(shown) == printed(meshwright("collectives", "all_reduce", "--show", "--ranks", "4", "--algorithm", "tree", "--json"))
    experts = mw.collectives(experts="qwen3-30b-a3b", ranks=16, cluster="h100-sxm", tokens=512)
    words = ("--experts", "qwen3-30b-a3b", "--ranks", "16", "--cluster", "h100-sxm", "--tokens", "512", "--json")
    assert in_json(experts) == printed(meshwright("collectives", "all_to_all", *words))


def test_watch(tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    for rank in range(2):
        write_progress(tmp_path, Progress(rank=rank, world_size=2, written_s=0.0, interval_s=5.0, ended=True))
    found = mw.watch(tmp_path)
    assert found.done and in_json(found) == {"behind": []} == printed(meshwright("watch", str(tmp_path), "--json"))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: mw.catalog("model"), {("catalog()", "kind")}),
        (
            lambda: mw.collectives("all_redcue", ranks=0, tokens=4),
            {("collectives()", "op"), ("collectives()", "ranks"), ("collectives()", "tokens")},
        ),
        (lambda: mw.collectives(ranks=300, show=True), {("collectives()", "ranks")}),
        (lambda: mw.collectives(cluster="h1000"), {("collectives()", "cluster")}),
        (lambda: mw.collectives(experts="qwen3-30b-a3b"), {("collectives()", "cluster")}),
        (lambda: mw.collectives(ranks="8"), {("collectives()", "ranks")}),
        (lambda: mw.validate("none.csv"), {("none.csv", "")}),
        (lambda: mw.validate("none.csv", calibrate=-1, seed="x"), {("validate()", "calibrate"), ("validate()", "seed")}),
        (lambda: mw.calibrate(), {("calibrate()", "files")}),
        (lambda: mw.calibrate("none.csv", output="mine.csv"), {("calibrate()", "output")}),
        (lambda: mw.watch("none"), {("watch()", "FOLDER")}),
        (lambda: mw.watch("none", every=0, limit="5"), {("watch()", "every"), ("watch()", "limit")}),
    ],
    ids=range(12),
)  # fmt: skip
def test_mistakes_name_the_call_and_its_arguments(call: Callable[[], object], told: set[tuple[str, str]]) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert {(mistake.file, mistake.key) for mistake in error.value.mistakes} == told
