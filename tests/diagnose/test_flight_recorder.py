"""Flight-recorder dumps: those of jobs whose broken ranks are known, and those made by hand for what the format says."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from dumps import WORLD, dump, entry, write_tp_dp_job
from meshwright.diagnose.calls import RankCalls
from meshwright.diagnose.judge import diagnose, evidence_of
from shared_data import shared

TP = ("5", "TP")


def write(folder: Path, dumps: dict[int, dict]) -> Path:
    for rank, content in dumps.items():
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def calls_of(path: Path) -> RankCalls:
    return evidence_of([path])[0].of(RankCalls)[0]


@pytest.mark.parametrize("job", ["gpu_error_1st", "lock_gil_1st"])
def test_the_ranks_in_which_faults_were_injected_are_named(job: str) -> None:
    folder = shared(f"data/traces/nvrx-flight-recorder/{job}")
    injected = re.search(r"Fault ranks: \[([\d, ]+)\]", (folder / "fault_injection.log").read_text())
    assert injected is not None
    diagnosis = diagnose([folder])
    assert [finding.ranks for finding in diagnosis.findings] == [tuple(map(int, injected[1].split(",")))]
    assert (diagnosis.verdict, diagnosis.findings[0].confidence) == ("fault", "high")


@pytest.mark.parametrize(("job", "code", "ranks"), [("missing", "missing-rank", (1,)), ("order", "op-mismatch", (0, 1))])
def test_gloo_dumps_without_states(job: str, code: str, ranks: tuple[int, ...]) -> None:
    """In the second, one rank reduces and the other broadcasts: nothing tells which of the two is wrong."""
    (finding,) = diagnose([shared(f"data/traces/gloo-fr-local/{job}")]).findings
    assert (finding.code, finding.ranks) == (code, ranks)
    assert any("grepo.py:" in sentence for sentence in finding.evidence)


def test_json_dumps_say_the_same(tmp_path: Path) -> None:
    folder = shared("data/traces/nvrx-flight-recorder/lock_gil_1st")
    for path in folder.glob("_dump_*"):
        (tmp_path / f"{path.name}.json").write_text(json.dumps(pickle.loads(path.read_bytes())))
    assert diagnose([tmp_path]).findings == diagnose([folder]).findings


def test_a_job_of_512_ranks_with_9_dumps_missing(tmp_path: Path) -> None:
    missing = (3, 60, 61, 100, 200, 300, 400, 500, 511)
    write_tp_dp_job(tmp_path, tp=8, dp=64, calls=20, culprit=77, missing=missing)
    headline = diagnose([tmp_path]).findings[0]
    assert (headline.code, headline.ranks, headline.collective) == ("missing-rank", (77,), "all_reduce 20")
    assert any("ranks 3, 60, 61, 100, 200, 300, 400, 500, 511 leave no file" in sentence for sentence in headline.evidence)


def test_ranks_without_a_dump_are_blamed_if_all_wait_for_them(tmp_path: Path) -> None:
    waiting = dump({WORLD: range(4)}, [entry(WORLD, "all_reduce", 52, 52)], {"0": (52, 51)})
    headline = diagnose([write(tmp_path, {0: waiting, 1: waiting, 3: waiting})]).findings[0]
    assert (headline.code, headline.ranks) == ("silent-rank", (2,))


def test_a_coalesced_block_is_done_when_its_last_entry_is(tmp_path: Path) -> None:
    def block(first: int, number: int, done: bool) -> list[dict]:
        ops = [entry(TP, op, number, first + place) for place, op in enumerate(("send 0->1", "recv 0<-1"))]
        closing = entry(TP, "coalesced", 0, first + 2, done=done, p2p_seq_id=number, is_p2p=True)
        return [*ops, closing]

    entries = [*block(0, 1, done=True), *block(3, 2, done=False)]
    record = calls_of(write(tmp_path, {0: dump({TP: (0, 1)}, entries, {})}))
    assert [(call.event.op, call.event.peer, call.done) for call in record.calls] == [
        ("send", 1, True), ("recv", 1, True), ("send", 1, False), ("recv", 1, False),
    ]  # fmt: skip


def test_ends_of_p2p_are_ranks_of_the_group(tmp_path: Path) -> None:
    record = calls_of(write(tmp_path, {4: dump({("7", "PP"): (0, 4, 8, 12)}, [entry(("7", "PP"), "send 1->2", 9, 0)], {})}))
    assert record.calls[0].event.peer == 8


def test_a_shape_that_differs_within_what_all_ranks_still_have(tmp_path: Path) -> None:
    """Rank 0's ring has lost the first calls; rank 2 passes another shape in the last."""

    def calls(first: int, last_size: list[int]) -> list[dict]:
        done = [entry(TP, "_all_gather_base", number, number, done=True) for number in range(first, 9)]
        return [*done, entry(TP, "_all_gather_base", 9, 9, size=last_size)]

    sizes = {0: [64, 128], 1: [64, 128], 2: [63, 128]}
    dumps = {rank: dump({TP: (0, 1, 2)}, calls(5 if rank == 0 else 1, size), {"5": (9, 8)}) for rank, size in sizes.items()}
    headline = diagnose([write(tmp_path, dumps)]).findings[0]
    assert (headline.code, headline.ranks, headline.collective) == ("shape-mismatch", (2,), "all_gather 9")


def test_all_to_all_with_other_rows_on_each_rank_must_add_up(tmp_path: Path) -> None:
    def calls(sent: int, received: int) -> list[dict]:
        return [entry(TP, "all_to_all", 1, 1, input_sizes=[[sent, 8]], output_sizes=[[received, 8]])]

    rows = {0: (10, 12), 1: (14, 12)}
    dumps = {rank: dump({TP: (0, 1)}, calls(*pair), {"5": (1, 0)}) for rank, pair in rows.items()}
    assert diagnose([write(tmp_path, dumps)]).findings[0].code == "stalled-collective"
    dumps[1]["entries"][0]["output_sizes"] = [[13, 8]]
    assert diagnose([write(tmp_path, dumps)]).findings[0].code == "splits-mismatch"


def test_names_that_tell_no_rank_are_helped_by_the_groups(tmp_path: Path) -> None:
    content = dump({TP: (2, 3), ("6", "DP"): (3, 7)}, [], {})
    (tmp_path / "host-b.pickle").write_bytes(pickle.dumps(content, protocol=2))
    assert calls_of(tmp_path).rank == 3


@pytest.mark.parametrize("name", ["dump_3", "nccl_trace_rank_3", "host12_rank3.pkl", "dump_3_1764000.pickle", "7/job42_3.bin"])
def test_ranks_are_told_by_names_of_many_forms(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(dump({WORLD: range(8)}, [], {})))
    assert calls_of(path).rank == 3
