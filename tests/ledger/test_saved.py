"""What a layer keeps for its backward, against the published accounts.

s sequence, b sequences, h model, a heads, t tensor parallel ranks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.models import DENSE, EXPERTS, GPT3_175B, LLAMA_70B, SMALL_EXPERTS, SMALL_GROUPED, SMALL_LATENT
from meshwright.ledger.blocks.layer import Block
from meshwright.ledger.build import build
from meshwright.ledger.stages import LayerBlock
from meshwright.spec.layout import parse_layout
from meshwright.spec.model import Model
from meshwright.spec.stack import STACKS, Stack
from meshwright.spec.workload import Training

MEGATRON_2021 = STACKS["megatron-2021"]
STATISTICS = ("norm_statistics", "attention_statistics")
"""Kept in fp32 per token (and head); the papers leave them out as small."""


def without_statistics(stack: Stack) -> Stack:
    return replace(stack, saves=stack.saves - set(STATISTICS))


def block_of(layout: str, model: Model, stack: Stack, moe: bool = False) -> Block:
    parsed = parse_layout(layout)
    ledger = build(model, Training(seq=2048, batch=64), parsed, stack)
    return ledger.layer(LayerBlock(EXPERTS if moe else DENSE, parsed.recompute))


s, b, h, a = 2048, 2, 12_288, 96  # of GPT3_175B at mb=2


@pytest.mark.parametrize(
    ("layout", "per_sbh"),
    [
        ("mb=2", 34 + 5 * a * s / h),
        ("tp=8 mb=2", 10 + 24 / 8 + 5 * a * s / (h * 8)),
        ("tp=8 sp mb=2", 34 / 8 + 5 * a * s / (h * 8)),
        ("tp=8 mb=2 recompute=selective", 10 + 24 / 8),
        ("tp=8 sp mb=2 recompute=selective", 34 / 8),
        ("tp=8 mb=2 recompute=full", 2),
        ("tp=8 sp mb=2 recompute=full", 2 / 8),
    ],
)
def test_gpt_layer_with_dropout_and_scores(layout: str, per_sbh: float) -> None:
    """Korthikanti et al. (arXiv 2205.05198), table 2. The last line is the paper's 2 s b h with the input kept sharded, as sp has it."""
    assert block_of(layout, GPT3_175B, without_statistics(MEGATRON_2021)).saved_bytes == per_sbh * s * b * h


def test_llama_layer_with_flash_attention() -> None:
    """33.5 b s h for Llama-3-70B: norms 4, qkv and gate_up inputs 4, q 2, k and v 1/2, core output 2, gate and up 14, down input 7."""
    assert block_of("mb=2", LLAMA_70B, without_statistics(STACKS["megatron"])).saved_bytes == 33.5 * s * b * 8192


def test_statistics_are_one_number_per_token_and_norm_and_per_head() -> None:
    """RMSNorm keeps one, LayerNorm two (Megatron's mean and 1/sigma); flash attention its log-sum-exp per query and head."""
    fused = STACKS["megatron"]
    for model, per_token in ((LLAMA_70B, 2 * 1 + 64), (GPT3_175B, 2 * 2 + 96)):
        kept = block_of("mb=2", model, fused).saved_bytes - block_of("mb=2", model, without_statistics(fused)).saved_bytes
        assert kept == 4 * s * b * per_token


def test_the_output_layer_keeps_the_softmax_in_fp32() -> None:
    """Korthikanti et al., section 4.3: 2 s b h for the final norm, 2 s b h for the head, 4 s b v for the logits."""
    ledger = build(GPT3_175B, Training(seq=s, batch=64), parse_layout("tp=8 sp mb=2"), without_statistics(MEGATRON_2021))
    assert ledger.head.saved_bytes == 4 * s * b * h / 8 + 4 * s * b * 51_200 / 8


def test_a_loss_in_place_keeps_no_softmax() -> None:
    """Transformer Engine's cross-entropy writes the gradient over the logits."""
    ledger = build(LLAMA_70B, Training(seq=s, batch=64), parse_layout("tp=8 sp mb=2"), without_statistics(STACKS["megatron"]))
    assert ledger.head.saved_bytes == 4 * s * b * 8192 / 8


def test_head_norms_keep_q_and_k_before_and_after() -> None:
    """v is not normalised and is there once: (N + K) H before, (N + 2 K) H after."""
    tokens = 2048
    with_norm = block_of("mb=1", SMALL_GROUPED, without_statistics(STACKS["megatron"])).saved_bytes
    plain = replace(SMALL_GROUPED, attention=replace(SMALL_GROUPED.attention, qk_norm=False))
    without = block_of("mb=1", plain, without_statistics(STACKS["megatron"])).saved_bytes
    assert with_norm - without == 2 * tokens * (24 + 4) * 16


def test_ulysses_keeps_what_it_swapped_in() -> None:
    """4 kv heads on 12 ranks: each rank has a copy of one after the swap, three times what it had before; and the output of its heads
    beside the one that was swapped back. 24 heads of 16 channels on 2048 tokens."""

    def saved(layout: str) -> int:
        return int(block_of(layout, SMALL_GROUPED, without_statistics(STACKS["megatron"])).saved_bytes)

    kv, output = 2 * (2048 // 2) * 2 * 4 * 16, 2 * (2048 // 2) * 24 * 16
    assert saved("cp=2:ulysses mb=1") - saved("cp=2:ring mb=1") == output
    workload = Training(seq=3072, batch=4)
    ledgers = [
        build(SMALL_GROUPED, workload, parse_layout(f"cp=12:{kind} mb=1"), without_statistics(STACKS["megatron"]))
        for kind in ("ulysses", "ring")
    ]
    swapped, plain = (ledger.layer(LayerBlock(DENSE, "none")).saved_bytes for ledger in ledgers)
    kv, output = 2 * (3072 // 12) * 2 * 4 * 16, 2 * (3072 // 12) * 24 * 16
    assert swapped - plain == output + (3 - 1) * kv


def test_selective_recompute_keeps_q_k_v_and_the_core_output() -> None:
    """And not what ulysses swapped in."""
    stack = without_statistics(STACKS["megatron"])
    ring, ulysses = (block_of(f"cp=2:{kind} mb=1 recompute=selective", SMALL_GROUPED, stack) for kind in ("ring", "ulysses"))
    assert ring.saved_bytes == ulysses.saved_bytes == block_of("cp=2:ring mb=1", SMALL_GROUPED, stack).saved_bytes


@pytest.mark.parametrize("sp", [False, True])
def test_experts_keep_their_rows(sp: bool) -> None:
    """top_k copies of each token: input, gate and up, down's input, output (2 bytes); the router its input and fp32 scores, 20 bytes of
    choice per copy (expert, place, weight), and the two sums of the balance loss. With sp an etp rank works on the rows of the whole
    etp group, and 1/etp of the channels."""
    model, tokens, t = SMALL_EXPERTS, 2048, 2
    stack = without_statistics(STACKS["megatron"])
    layout = parse_layout(f"tp={t} {'sp' if sp else ''} mb=1")
    ledger = build(model, Training(seq=tokens, batch=4), layout, stack)
    rows = {row.name: 0 for row in ledger.layer(LayerBlock(EXPERTS, "none")).forward}
    for row in ledger.layer(LayerBlock(EXPERTS, "none")).forward:
        rows[row.name] += row.saved_bytes
    stream = tokens // t if sp else tokens
    copies, worked = stream * 2, stream * 2 * (t if sp else 1)
    assert rows["moe.router"] == stream * 96 * 2 + stream * 24 * 4 + copies * 20 + 2 * 24 * 4
    assert rows["moe.experts"] == worked * 2 * (96 + 2 * 48 // t + 48 // t)
    assert rows["moe.combine"] == copies * 96 * 2


def test_latents_are_kept_before_and_after_their_norms() -> None:
    block = block_of("tp=2 sp mb=1", SMALL_LATENT, without_statistics(STACKS["megatron"]))
    kept = {row.name: row.saved_bytes for row in block.forward}
    assert kept["attention.q_latent_norm"] == 2 * (2048 // 2) * 40
    assert kept["attention.kv_latent_norm"] == 2 * (2048 // 2) * 20
    assert kept["attention.q_up"] == 2 * (2048 // 2) * (40 + 20 + 8)  # both latents, normalised, with the rotary key
    assert kept["attention.rope"] == 2 * 2048 * 12 * (24 + 24 + 12)  # q, k, v of 12 heads


def test_eager_kernels_keep_intermediates() -> None:
    """torch's own norm keeps an fp32 copy of its input and SwiGLU the output of silu: 2 x 4 + 7 bytes on 33.5 for Llama-3-70B."""
    eager = block_of("mb=2", LLAMA_70B, without_statistics(STACKS["fsdp"])).saved_bytes
    assert eager == (33.5 + 8 + 7) * s * b * 8192
