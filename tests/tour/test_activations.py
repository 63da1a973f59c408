"""Activations of a whole sequence, and what is left on a device under FSDP alone.

Formulas: Korthikanti et al., arXiv 2205.05198, section 4.1; our T D = their s h b.
"""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.explain.memory_report import MemoryReport
from meshwright.spec.load_model import resolve_model
from tour.jobs import LLAMA_70B

SEQ = 8192
TERA = 1e12


def one_sequence(stack: str) -> MemoryReport:
    return mw.memory(LLAMA_70B, cluster="h100-sxm", layout="dp=1 mb=1", seq=SEQ, batch=1, stack=stack)


@pytest.mark.parametrize(("stack", "terabytes"), [("megatron", 0.18), ("megatron-2021", 1.9)])
def test_one_sequence_of_the_70b(stack: str, terabytes: float) -> None:
    """8,192 tokens, 80 layers: with flash attention, and with softmax, dropout mask and dropped copy kept. Two digits are stated."""
    assert one_sequence(stack).fullest.categories["activations"] / TERA == pytest.approx(terabytes, rel=0.03)


def kept_by_a_layer(stack: str) -> int:
    """What the forward rows of one layer leave for its backward."""
    rows = mw.explain(LLAMA_70B, cluster="h100-sxm", layout="dp=1 mb=1", seq=SEQ, batch=1, stack=stack, layer=0, phase="forward").rows
    return sum(row.row.saved_bytes for row in rows)


def test_what_a_layer_keeps_with_flash_attention() -> None:
    """bf16 of a fused layer: inputs of the two norms (2 D), their outputs (2 D), q, k, v and the core's output (2 D + 2 K H), gate, up
    and their product (3 F); fp32 statistics of two norms and of each head's softmax."""
    a = LLAMA_70B.attention
    widths = 6 * LLAMA_70B.hidden_size + 2 * a.num_kv_heads * a.head_dim + 3 * LLAMA_70B.ffn_size
    statistics = 4 * SEQ * (2 + a.num_heads)
    assert kept_by_a_layer("megatron") == SEQ * widths * 2 + statistics


def test_what_the_score_matrix_adds() -> None:
    """5 a s^2 b bytes: 2 for the softmax, 1 for the dropout mask, 2 for the dropped copy; and 2 s D of dropout masks after attention
    and MLP. Flash attention keeps a statistic of 4 bytes per token and head instead."""
    heads = LLAMA_70B.attention.num_heads
    added = 5 * heads * SEQ * SEQ + 2 * SEQ * LLAMA_70B.hidden_size - 4 * heads * SEQ
    assert kept_by_a_layer("megatron-2021") - kept_by_a_layer("megatron") == added


def test_530b_under_fsdp_alone() -> None:
    """1,024 ranks: the shards are 16 P / 1024, but one layer is gathered whole, the next one is prefetched, and the root stays.

    A layer of 12 D^2 is 5.03e9 parameters, 10.07 GB in bf16; biases and norms are 13 D more, under 0.01 %."""
    model = resolve_model("mt-nlg-530b")
    report = mw.memory(model, cluster="h100-sxm", layout="dp=1024 zero=3 mb=1 recompute=full", seq=2048, batch=1024)
    held = report.fullest.categories
    D, layer_bytes = model.hidden_size, 12 * model.hidden_size**2 * 2
    rows = 50 * 1024 + model.max_positions + 2  # 50,257 rows of the table are padded to 50 a rank
    root_bytes = rows * D * 2
    assert layer_bytes == pytest.approx(10.07e9, rel=1e-3)  # printed with four digits
    assert held["gathered"] == pytest.approx(2 * layer_bytes + root_bytes, rel=3e-4)  # biases and norms of two layers, their padding
    assert held["gathered"] > held["weights"] + held["gradients"] + held["optimizer"]


def test_activations_of_530b_under_fsdp_alone() -> None:
    """With every layer recomputed one rank keeps each layer's input, 105 s D in bf16: 8.8 GB, and the head's logits beside it;
    without recompute the whole sequence of every layer, which no device holds."""
    model = resolve_model("mt-nlg-530b")
    kept, whole = (
        mw.memory(model, cluster="h100-sxm", layout=f"dp=1024 zero=3 mb=1 {recompute}", seq=2048, batch=1024)
        for recompute in ("recompute=full", "recompute=none")
    )
    inputs = 105 * 2048 * model.hidden_size * 2
    # Beside them: the head's input, logits of 50,257 and their fp32 statistics, embedding's ids.
    logits = 2048 * (model.vocab_size * 2 + 2 * model.hidden_size * 2)
    assert inputs < kept.fullest.categories["activations"] <= inputs + 3 * logits
    assert kept.fits
    assert not whole.fits
