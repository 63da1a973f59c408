"""Lines as torch and NCCL write them, in the wordings of public issue reports (LlamaFactory 6269, nccl 1730, vllm-omni 2928)."""

from __future__ import annotations

from pathlib import Path

from meshwright.diagnose.judge import diagnose, evidence_of
from meshwright.diagnose.stacks import Stack, alike


def timeout(rank: int, seq: int, op: str, line: int) -> str:
    return (
        f"[rank{rank}]:[E603 17:48:01.005271823 ProcessGroupNCCL.cpp:{line}] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
    )


def old_timeout(rank: int, seq: int, op: str = "ALLREDUCE") -> str:
    """torch 2.3 to 2.5."""
    return timeout(rank, seq, op, 607) + (
        f"[rank{rank}]:[E1206 18:44:12.715588844 ProcessGroupNCCL.cpp:1664] [PG 0 Rank {rank}] Exception (either an error or timeout) "
        f"detected by watchdog at work: {seq}, last enqueued NCCL work: {seq}, last completed NCCL work: {seq - 1}.\n"
    )


def new_timeout(rank: int, seq: int) -> str:
    """torch 2.6 and newer."""
    return timeout(rank, seq, "ALLREDUCE", 632) + (
        f"[rank{rank}]:[E603 17:48:01.005538748 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure "
        f"detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq + 120}, last completed work: {seq - 1}\n"
    )


def dump_signal(rank: int, count: int, other: int) -> str:
    return (
        f"[rank{rank}]:[E418 01:32:50.907342463 ProcessGroupNCCL.cpp:1890] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump "
        f"signal due to a collective timeout from  rank {other} and we will try our best to dump the debug info. Last enqueued NCCL work: "
        f"{count}, last completed NCCL work: {count}.This is most likely caused by incorrect usages of collectives\n"
    )


def test_a_rank_that_enqueued_less_is_named_from_one_file_of_all_ranks(tmp_path: Path) -> None:
    noise = "step 12 loss 3.4\n" * 10_000
    text = noise + "".join(new_timeout(rank, 52) for rank in (0, 1, 3)) + dump_signal(2, 51, other=0)
    (tmp_path / "job.log").write_text(text)
    headline = diagnose([tmp_path]).findings[0]
    assert (headline.code, headline.ranks, headline.group, headline.collective) == (
        "missing-rank", (2,), "0:default_pg", "all_reduce 52",
    )  # fmt: skip
    assert "rank 2: told by rank 0 that a collective timed out there" in headline.evidence


def test_one_file_a_rank_and_a_rank_that_wrote_nothing(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        (tmp_path / f"rank{rank}.log").write_text(old_timeout(rank, 7))
    (tmp_path / "rank2.log").write_text("starting\n")
    diagnosis = diagnose([tmp_path])
    assert (diagnosis.findings[0].code, diagnosis.findings[0].ranks) == ("silent-rank", (2,))
    assert len(diagnosis.notes) == 1 and "rank2.log" in diagnosis.notes[0]


def test_ranks_that_time_out_in_different_operations(tmp_path: Path) -> None:
    text = old_timeout(0, 7) + old_timeout(1, 7) + old_timeout(2, 7, op="_ALLGATHER_BASE")
    (tmp_path / "job.log").write_text(text)
    headline = diagnose([tmp_path]).findings[0]
    assert (headline.code, headline.ranks) == ("op-mismatch", (2,))


def test_all_entered_and_none_completed_is_not_blamed_on_a_rank(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("".join(old_timeout(rank, 7) for rank in range(4)))
    diagnosis = diagnose([tmp_path])
    assert (diagnosis.verdict, diagnosis.findings[0].code) == ("inconclusive", "stalled-collective")


def test_a_log_without_a_fault_is_left_out_and_told(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(old_timeout(0, 7))
    (tmp_path / "notes.txt").write_text("nothing of interest\n")
    assert any("notes.txt" in note for note in diagnose([tmp_path]).notes)


SPY = """\
Process {pid}: python train.py --rank={rank}
Python v3.11.4 (/usr/bin/python3.11)

Thread 0x7F01 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    wrapper (torch/distributed/c10d_logger.py:83)
    step (train.py:88)
    main (train.py:120)
Thread 0x7F02 (idle): "pin_memory"
    wait (threading.py:331)
"""


def test_stacks_are_grouped_and_the_odd_one_named(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"stack_{rank}.txt").write_text(SPY.format(pid=100 + rank, rank=rank))
    lost = 'Process 104: python train.py --rank=4\nPython v3.11.4 (/usr/bin/python3.11)\n\nThread 0x7F01 (active+gil): "MainThread"\n'
    (tmp_path / "stack_4.txt").write_text(lost + "    parse (tokens.py:31)\n    next_batch (train.py:70)\n    main (train.py:118)\n")
    evidence, _ = evidence_of([tmp_path])
    assert [len(same) for same in alike(evidence.of(Stack))] == [4, 1]
    headline = diagnose([tmp_path]).findings[0]
    assert (headline.code, headline.ranks) == ("odd-stack", (4,))
    assert "tokens.py:31" in headline.title


def test_stacks_say_where_a_missing_rank_is(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(new_timeout(0, 52) + new_timeout(1, 52) + dump_signal(2, 51, other=0))
    (tmp_path / "stack_rank2.txt").write_text(SPY.format(pid=1, rank=2).replace("step (train.py:88)", "save (checkpoint.py:9)"))
    headline = diagnose([tmp_path]).findings[0]
    assert headline.code == "missing-rank" and any("checkpoint.py:9" in sentence for sentence in headline.evidence)
