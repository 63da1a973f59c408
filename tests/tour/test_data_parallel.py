"""DP sends 2 P of gradients per step, FSDP 3 P of parameters and gradients per micro-batch (arXiv 1910.02054, section 7)."""

from __future__ import annotations

import pytest

from meshwright.spec.model_summary import summarise
from tour.jobs import LLAMA_8B, LLAMA_70B, by_axis

GIGA = 1e9


def wire_in_models(zero: str, batch: int, precision: str = "bf16") -> float:
    """What one of 8 ranks sends per step, in copies of the model in bf16 times (N-1)/N."""
    line = by_axis(LLAMA_8B, f"dp=8 zero={zero} mb=1", batch, precision=precision).line("dp")
    return line.wire_bytes / (2 * summarise(LLAMA_8B).parameters * 7 / 8)


def root_share() -> float:
    """Embedding, final norm and head, which FSDP keeps gathered from the forward to the backward."""
    root = 2 * LLAMA_8B.vocab_size * LLAMA_8B.hidden_size + LLAMA_8B.hidden_size
    return root / summarise(LLAMA_8B).parameters


@pytest.mark.parametrize("zero", ["0", "1"])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_data_parallelism_sends_two_copies_a_step(zero: str, micro_batches: int) -> None:
    """Whether as one all_reduce, or as a reduce_scatter and ZeRO-1's gather."""
    assert wire_in_models(zero, 8 * micro_batches) == 2


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_fully_sharded_sends_three_copies_a_micro_batch(micro_batches: int) -> None:
    """Gathered forward and backward, scattered once; the root is gathered only once."""
    assert wire_in_models("3", 8 * micro_batches) == pytest.approx(micro_batches * (3 - root_share()), rel=1e-12)  # float sums


@pytest.mark.parametrize(("zero", "gigabytes"), [("3", 2963), ("3:local", 1991), ("3:keep", 31)])
def test_traffic_of_the_variants(zero: str, gigabytes: float) -> None:
    """tp=8 dp=1x8 mb=1, batch 512, 70B, bf16: m = 64, so 3, 2 and 0 copies 64 times, and 0, 1 and 2 once. The round figures gather the
    root in every backward, too (added here), have no decimals, and count the norms, which every tp rank holds, once (0.4 GB)."""
    line = by_axis(LLAMA_70B, f"tp=8 dp=8 zero={zero} mb=1", 512, precision="bf16").line("dp")
    regathered = 0 if zero == "3:keep" else 64
    root = (2 * LLAMA_70B.vocab_size / 8 + 1) * LLAMA_70B.hidden_size * 2 * 7 / 8
    assert (line.wire_bytes + regathered * root) / GIGA == pytest.approx(gigabytes, abs=0.9)


def test_variants_are_a_factor_of_96_apart() -> None:
    """(3 m) / 2 = 96 copies for m = 64, less the root's 1 %."""
    each, keep = (by_axis(LLAMA_70B, f"tp=8 dp=8 zero={z} mb=1", 512, precision="bf16").line("dp").wire_bytes for z in ("3", "3:keep"))
    assert each / keep == pytest.approx(96, rel=0.011)


def test_a_unit_sends_its_own_bytes() -> None:
    """ZeRO-0 sums one all_reduce per unit: 32 layers and the root."""
    line = by_axis(LLAMA_8B, "dp=8 zero=0 mb=1", 8).line("dp")
    assert line.collectives == {"all_reduce": 33}
