"""Context parallelism on 128K tokens of the 70B over 8 ranks: what is sent, and who computes how much under a causal mask."""

from __future__ import annotations

import pytest

from tour.jobs import LLAMA_70B, one_layer, wire_bytes, with_every_head_its_own

SEQ, CP = 131_072, 8
GIGA = 1e9
LLAMA_MHA = with_every_head_its_own(LLAMA_70B)


def sent(kind: str, phase: str = "forward", mha: bool = False) -> int:
    """Bytes that a rank sends over cp in one layer."""
    rows = one_layer(LLAMA_MHA if mha else LLAMA_70B, f"cp={CP}:{kind} dp=1 mb=1", phase, seq=SEQ)
    return wire_bytes(rows, "cp", "ring", "ulysses")


@pytest.mark.parametrize(
    ("kind", "mha", "gigabytes"), [("ring", False, 0.470), ("ulysses", False, 0.528), ("ring", True, 3.76), ("ulysses", True, 0.94)]
)
def test_one_layer_forward(kind: str, mha: bool, gigabytes: float) -> None:
    """The ring passes K and V cp-1 times, so it shrinks with grouped heads; Ulysses passes q, k, v and the output once. The figures
    have three digits."""
    assert sent(kind, mha=mha) / GIGA == pytest.approx(gigabytes, rel=0.002)


def test_ring_from_its_formula() -> None:
    """cp-1 exchanges of K and V of S/cp tokens: 2 x 8 heads x 128 channels x 2 bytes."""
    assert sent("ring") == (CP - 1) * (SEQ // CP) * 2 * 8 * 128 * 2


def test_ulysses_from_its_formula() -> None:
    """(cp-1)/cp of q, of k and v, and of the output."""
    tokens = SEQ // CP
    assert sent("ulysses") == (CP - 1) / CP * tokens * (64 + 2 * 8 + 64) * 128 * 2


def test_ring_backward_also_brings_gradients_home() -> None:
    """cp-1 exchanges of K, V again and cp of dK, dV in fp32: twice the bytes each."""
    assert sent("ring", "backward_input") == sent("ring") / (CP - 1) * ((CP - 1) + 2 * CP)


def test_ulysses_backward_mirrors_its_forward() -> None:
    assert sent("ulysses", "backward_input") == sent("ulysses")


def attention_flops(kind: str) -> list[float]:
    """Flops of the attention core of each rank of the ring."""
    found = []
    for rank in range(CP):
        rows = one_layer(LLAMA_70B, f"cp={CP}:{kind} dp=1 mb=1", "forward", seq=SEQ, rank=rank)
        found.append(next(row.flops for row in rows if row.name == "attention.core" and row.op is None))
    return found


def test_contiguous_chunks_under_a_causal_mask() -> None:
    """Rank r has (2 r + 1) of cp^2 parts: the last one 2 - 1/cp = 1.875 times the average, and the others wait for it.

    The diagonal, S of S (S+1)/2 pairs, is shared evenly: 8 in 131,072 of the first rank's work."""
    flops = attention_flops("ring")
    total = sum(flops)
    assert [share / total * CP**2 for share in flops] == pytest.approx([2 * rank + 1 for rank in range(CP)], rel=1e-4)
    assert max(flops) * CP / total == pytest.approx(2 - 1 / CP, rel=1e-4)


@pytest.mark.parametrize("kind", ["zigzag", "striped", "allgather", "ulysses"])
def test_maps_that_balance(kind: str) -> None:
    assert len(set(attention_flops(kind))) == 1


def test_uneven_chunks_cost_what_the_last_rank_takes() -> None:
    """The step pays for the busiest rank: attention's seconds of the ring over those of zigzag, at equal kernels."""
    seconds = {}
    for kind in ("ring", "zigzag"):
        rows = one_layer(LLAMA_70B, f"cp={CP}:{kind} dp=1 mb=1", "forward", seq=SEQ, rank=CP - 1)
        seconds[kind] = next(row.each_s for row in rows if row.name == "attention.core" and row.op is None)
    assert seconds["ring"] / seconds["zigzag"] == pytest.approx(2 - 1 / CP, rel=1e-4)


def test_sixteen_tp_ranks_share_eight_kv_heads() -> None:
    """Each kv head is on two ranks, which compute it twice and sum its gradients: q 4 heads, k and v one, where tp=8 has 8, 1 and 1."""
    shapes, sums = {}, {}
    for tp in (8, 16):
        rows = one_layer(LLAMA_70B, f"tp={tp} sp dp=1 mb=1")
        shapes[tp] = next(row.after_shape for row in rows if row.name == "attention.qkv" and row.op is None)
        sums[tp] = [(row.op, row.ranks, row.payload_bytes) for row in rows if row.axis == "kv"]
    assert shapes == {8: (1, 8192, (8 + 2) * 128), 16: (1, 8192, (4 + 2) * 128)}
    assert sums == {8: [], 16: [("all_reduce", 2, 2 * 128 * 8192 * 2)]}
