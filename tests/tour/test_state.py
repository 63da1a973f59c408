"""What a parameter costs in memory under Adam: 16 bytes, and what each ZeRO stage leaves of them (arXiv 1910.02054, figure 1)."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.spec.model_summary import summarise
from tour.jobs import LLAMA_8B

STATE = ("weights", "gradients", "optimizer")


def state_per_parameter(layout: str, precision: str | None = "bf16") -> float:
    """Bytes of weights, gradients and optimizer on the fullest rank, per parameter of the model."""
    more = {} if precision is None else {"precision": precision}
    report = mw.memory(LLAMA_8B, cluster="h100-sxm", layout=layout, seq=2048, batch=512, **more)
    return sum(report.fullest.categories[name] for name in STATE) / summarise(LLAMA_8B).parameters


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 16), (1, 7), (2, 5.5), (3, 4)])
def test_a_billion_parameters_over_four_ranks(zero: int, gigabytes: float) -> None:
    """2 + 2 + 12 bytes; over 4: 2 + 2 + 3, 2 + 0.5 + 3, 0.5 + 0.5 + 3. Exact: every unit of this model is divisible by four."""
    assert state_per_parameter(f"dp=1x4 zero={zero} mb=1") == gigabytes


@pytest.mark.parametrize(("precision", "total"), [("bf16", 16), ("bf16-fp32grad", 18), ("fp16", 16), ("fsdp", 16)])
def test_recipes(precision: str, total: float) -> None:
    """2+2+12, 2+4+12 (Korthikanti et al., arXiv 2205.05198, appendix), 2+2+12 and 4+4+8."""
    assert state_per_parameter("dp=1x4 zero=0 mb=1", precision) == total


def test_fully_sharded_over_512_ranks() -> None:
    """16 P / 512, not 16 P. 128,256 rows of embedding and of head are padded to 251 a rank."""
    padding = 2 * (512 * 251 - LLAMA_8B.vocab_size) * LLAMA_8B.hidden_size
    expected = 16 / 512 * (1 + padding / summarise(LLAMA_8B).parameters)
    assert state_per_parameter("dp=1x512 zero=3 mb=1", None) == pytest.approx(expected, rel=1e-12)  # a quotient of floats


def test_replicas_of_hybrid_sharding_hold_whole_shards() -> None:
    """HSDP shards inside a group and replicates across groups: 8 groups of 64 hold 16 P / 64."""
    assert state_per_parameter("dp=8x64 zero=3 mb=1", None) == 16 / 64
