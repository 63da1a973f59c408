"""A table of operations played again takes as long as the pipeline that it was made from (timeline/simulate.py has its own rules)."""

from __future__ import annotations

import builtins
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.diagnose.readers.operations import READER
from meshwright.diagnose.slow.operation_graph import graph_of, group_of
from meshwright.diagnose.slow.what_if import what_if
from meshwright.diagnose.source import Source, Unreadable
from meshwright.recording.operations import Operations
from meshwright.schedule import build
from meshwright.timeline import simulate, uniform_costs

KINDS = ("forward-compute", "backward-compute")


def table(name: str, p: int, v: int, m: int, forward: Any, backward: Any) -> tuple[Operations, float]:
    """One step of one data rank, and the span of the simulation; messages take no time and have no rows."""
    schedule = build(name, p, v, m)
    played = simulate(schedule, uniform_costs(schedule, forward, backward / 2, backward / 2))
    rows, counts = [], defaultdict(int)
    for event in sorted(played, key=lambda each: each.start_s):
        kind = int(event.kind != 0)
        rows.append((event.rank, counts[event.rank, kind], kind, event.chunk, event.start_s, event.end_s))
        counts[event.rank, kind] += 1
    stage, sequence, kind, chunk = (np.array(column, dtype=np.int64) for column in list(zip(*rows, strict=True))[:4])
    start, end = (np.array(column) for column in list(zip(*rows, strict=True))[4:])
    zero = np.zeros(len(rows), dtype=np.int64)
    found = Operations(
        path="t", data_rank=zero, stage=stage, step=zero, sequence=sequence, kind=kind, kinds=KINDS, chunk=chunk, start_s=start, end_s=end,
        rank={(0, rank): rank for rank in range(p)},
    )  # fmt: skip
    return found, float(played.span_s)


@pytest.mark.parametrize(
    ("name", "p", "v", "m"), [("1f1b", 4, 1, 8), ("1f1b", 3, 1, 3), ("gpipe", 4, 1, 6), ("interleaved", 4, 2, 8), ("interleaved", 2, 3, 4)]
)
def test_played_again_it_takes_as_long(name: str, p: int, v: int, m: int) -> None:
    dice = np.random.default_rng(5)
    forward, backward = dice.uniform(1, 2, p * v), dice.uniform(2, 4, p * v)
    operations, span_s = table(name, p, v, m, forward, backward)
    graph = graph_of(operations)
    assert graph.play(graph.duration_s) == pytest.approx(span_s)
    assert graph.traced_s == pytest.approx(span_s)


@pytest.mark.parametrize("slow", range(4))
def test_equal_durations_have_no_loss_and_one_slow_stage_all_of_it(slow: int) -> None:
    even, _ = table("1f1b", 4, 1, 8, np.ones(4), 2 * np.ones(4))
    assert what_if(graph_of(even)).slowdown == pytest.approx(1)
    times = np.where(np.arange(4) == slow, 1.5, 1.0)
    found = what_if(graph_of(table("1f1b", 4, 1, 8, times, 2 * times)[0]))
    assert max(found.stages, key=lambda stage: found.stages[stage]) == slow and found.stages[slow] >= 1
    assert min(found.waiting, key=lambda worker: found.waiting[worker]) == (0, slow)


def test_groups_by_the_names_of_operations() -> None:
    workers = [(data, stage) for data in range(2) for stage in range(3)]
    assert group_of("embedding-grads-all-reduce", (1, 0), workers) == [(1, 0), (1, 2)]
    assert group_of("params-all-gather", (1, 0), workers) == [(0, 0), (1, 0)]
    assert group_of("optimizer-clip-main-grad", (1, 0), workers) == workers
    assert group_of("layernorm-grads-all-reduce", (1, 1), workers) == [(1, 1)]


def source(path: Path) -> Source:
    return Source(str(path), path.stat().st_size, lambda: path.open("rb"))


def test_tables_of_something_else_say_what_is_missing(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="writes the parquet file")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"stage": [0], "step": [1]}), tmp_path / "t.parquet")
    with pytest.raises(Unreadable, match="without the columns dp_rank, optype"):
        list(READER.read(source(tmp_path / "t.parquet")))


def test_an_incomplete_table_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="writes the parquet file")
    from pyarrow import parquet

    rows = {
        "dp_rank": [0, 0],
        "stage": [0, 1],
        "step": [1, 2],
        "optype": ["forward-compute"] * 2,
        "start_ts": [0.0, 1.0],
        "duration": [1.0, 1.0],
        "seq_id": [0, 0],
    }
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    with pytest.raises(Unreadable, match="no step in which every worker"):
        list(READER.read(source(tmp_path / "t.parquet")))


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + b"\0" * 50)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unreadable, match=r"meshwright\[parquet\]"):
        list(READER.read(source(tmp_path / "t.parquet")))
