"""What tensor parallelism and the loss send: single messages, their account per layer, and their seconds on a link."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.explain.rows import ExplainedRow
from meshwright.spec.load_cluster import resolve_cluster
from tour.jobs import LLAMA_70B, TINY, by_axis, one_layer, payload_bytes, wire_bytes

MIB = 1 << 20
RING = 7 / 8
"""(N - 1)/N of 8 ranks: what one ring pass sends of its payload."""

WORDS = 8192 * 8192
"""b s h of one sequence of 8,192 tokens and 8,192 channels."""


def sent(rows: tuple[ExplainedRow, ...]) -> list[tuple[str, str, str | None]]:
    return [(row.phase, row.name, row.op) for row in rows if row.op]


def test_each_message_of_a_layer_is_128_mib() -> None:
    """b=1 s=8192 d=8192 in bf16: two all_reduces forward, two backward."""
    messages = [row for row in one_layer(LLAMA_70B, "tp=8 dp=1 mb=1") if row.axis == "tp" and row.phase != "reduce"]
    assert [row.op for row in messages] == ["all_reduce"] * 4
    assert {row.payload_bytes for row in messages} == {128 * MIB}


def test_tiny_case() -> None:
    """bs = 2 tokens, h = 4, N = 2, bf16: 16 bytes a message; on a ring of two a rank sends 2 (N-1)/N of them, 16 again."""
    messages = [row for row in one_layer(TINY, "tp=2 dp=1 mb=2", seq=1, batch=2) if row.axis == "tp"]
    assert {(row.op, row.payload_bytes, row.wire_bytes) for row in messages} == {("all_reduce", 16, 16)}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ring_all_reduce_sends_two_passes(ranks: int) -> None:
    """2 (N-1)/N M, exactly: M is divisible."""
    row = next(row for row in one_layer(LLAMA_70B, f"tp={ranks} dp=1 mb=1", "forward") if row.op == "all_reduce")
    assert row.wire_bytes == 2 * (ranks - 1) * 128 * MIB // ranks


def test_account_of_a_layer() -> None:
    """8 b s h words, forward and backward together, times (N-1)/N: not 16, and the bytes per word are counted once."""
    rows = one_layer(LLAMA_70B, "tp=8 dp=1 mb=1")
    assert wire_bytes(rows, "tp") == 8 * WORDS * 2 * RING


def test_account_of_a_layer_with_sequence_parallel() -> None:
    """4 words forward, 6 backward, because the input of the two column-parallel layers is gathered once more; Megatron saves it
    sharded (arXiv 2205.05198, section 4.2.2). On top, once per step, comes the sum of the norms' gradients."""
    rows = [row for row in one_layer(LLAMA_70B, "tp=8 sp dp=1 mb=1") if row.axis == "tp"]
    forward = tuple(row for row in rows if row.phase == "forward")
    backward = tuple(row for row in rows if row.phase.startswith("backward"))
    assert wire_bytes(forward, "tp") == 4 * WORDS * 2 * RING
    assert wire_bytes(backward, "tp") == 6 * WORDS * 2 * RING


def test_forty_gigabytes_over_nvlink() -> None:
    """80 layers, four messages of 128 MiB: 42.9 GB passed in are 75.2 GB sent, at 450 GB/s per direction 167 ms, over 50 GB/s 1.50 s."""
    line = by_axis(LLAMA_70B, "tp=8 dp=1 mb=1", batch=1).line("tp")
    assert line.payload_bytes == 80 * 4 * 128 * MIB == pytest.approx(42.9e9, rel=0.002)  # 42.95, printed with three digits
    assert line.wire_bytes == pytest.approx(75.2e9, rel=0.001)  # 75.16, printed with three digits
    inside, outside = (tier.bandwidth_bytes_per_s for tier in resolve_cluster("h100-sxm").tiers[:2])
    assert line.wire_bytes / inside == pytest.approx(0.167, abs=0.0005)  # printed with three digits
    assert line.wire_bytes / outside == pytest.approx(1.50, abs=0.005)
    assert inside / outside == 9


def test_volume_of_a_step_is_of_a_ranks_own_sequences() -> None:
    """Twice the data-parallel ranks halve what a rank sends over tp in a step of the same batch."""
    few, many = (by_axis(LLAMA_70B, f"tp=8 dp={dp} mb=1", batch=64).line("tp").payload_bytes for dp in (2, 4))
    assert few == 2 * many == 32 * 80 * 4 * 128 * MIB


def test_vocabulary_parallel_loss() -> None:
    """Per 8,192 tokens one fp32 maximum, and one sum of two fp32 numbers, the exponentials and the target's logit: 96 KiB."""
    explained = mw.explain(LLAMA_70B, cluster="h100-sxm", layout="tp=8 dp=1 mb=1", seq=8192, batch=1, phase="forward")
    rows = tuple(row for row in explained.rows if row.name == "loss")
    assert payload_bytes(rows, "tp") == 96 * 1024


def test_experts_volume_counts_every_copy_of_a_token() -> None:
    """Dispatch and combine send top_k copies of each token's D channels: 8 x 2,048 of 4,096 tokens in bf16."""
    rows = mw.explain("qwen3-30b-a3b", cluster="h100-sxm", layout="ep=8 dp=8 mb=1", seq=4096, batch=8, layer=0, phase="forward").rows
    copies = [row for row in rows if row.axis == "ep" and row.payload_bytes > 1024]
    assert [row.op for row in copies] == ["all_to_all"] * 2
    assert {row.payload_bytes for row in copies} == {4096 * 8 * 2048 * 2}
