"""What one micro-batch sends, line by line against DESIGN section 4.1 and the papers behind it.

Every list is written out by hand: (phase, module, op, axis, payload bytes, times), in the order in which a rank issues them. T tokens of
the rank, D model, all in bf16 (2 bytes) unless a comment says otherwise.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.models import DEEPSEEK_V3, DENSE, EXPERTS, GPT3_175B, LLAMA_70B, SMALL_EXPERTS, SMALL_LATENT_PLAIN_Q
from meshwright.ledger.blocks.layer import Block
from meshwright.ledger.build import build
from meshwright.ledger.rows import Row
from meshwright.ledger.stages import LayerBlock
from meshwright.spec.layout import parse_layout
from meshwright.spec.model import Model
from meshwright.spec.workload import Training

Sent = list[tuple[str, str, str, str, int, int]]
FWD, AGAIN, BWD, WGRAD = "forward", "recompute", "backward_input", "backward_weight"
WORKLOAD = Training(seq=8192, batch=512)
T, D = 8192, 8192  # of LLAMA_70B at cp=1, mb=1


def sent(rows: list[Row]) -> Sent:
    return [(row.phase, row.name, row.op, row.axis, row.payload_bytes, row.times) for row in rows if row.op]  # type: ignore[misc]


def layer(layout: str, model: Model = LLAMA_70B, moe: bool = False, recompute: str = "none") -> Block:
    return build(model, WORKLOAD, parse_layout(layout)).layer(LayerBlock(EXPERTS if moe else DENSE, recompute))


def test_one_device_sends_nothing() -> None:
    for model, moe in ((LLAMA_70B, False), (DEEPSEEK_V3, True)):
        ledger = build(model, WORKLOAD, parse_layout("mb=1"))
        blocks = [ledger.embedding, ledger.head, ledger.mtp, ledger.layer(LayerBlock(EXPERTS if moe else DENSE, "full"))]
        assert [sent(block.rows()) for block in blocks] == [[]] * len(blocks)


def test_tensor_parallel_layer_has_four_all_reduces() -> None:
    """Shoeybi et al. (arXiv 1909.08053), section 3: two in the forward, two in the backward, each of b s h: 128 MiB here."""
    whole = T * D * 2
    assert whole == 128 * 2**20
    assert sent(layer("tp=8 mb=1").rows()) == [
        (FWD, "attention.out", "all_reduce", "tp", whole, 1),
        (FWD, "mlp.down", "all_reduce", "tp", whole, 1),
        (BWD, "mlp.gate_up", "all_reduce", "tp", whole, 1),
        (BWD, "attention.qkv", "all_reduce", "tp", whole, 1),
    ]


SEQUENCE_PARALLEL_FORWARD: Sent = [
    (FWD, "attention.qkv", "all_gather", "tp", T * D * 2, 1),
    (FWD, "attention.out", "reduce_scatter", "tp", T * D * 2, 1),
    (FWD, "mlp.gate_up", "all_gather", "tp", T * D * 2, 1),
    (FWD, "mlp.down", "reduce_scatter", "tp", T * D * 2, 1),
]


def test_sequence_parallel_layer_gathers_the_saved_inputs_again() -> None:
    """Korthikanti et al. (arXiv 2205.05198), section 4.2.2: g and g-bar, and the extra all_gather of Y^s in the backward."""
    assert sent(layer("tp=8 sp mb=1").rows()) == [
        *SEQUENCE_PARALLEL_FORWARD,
        (BWD, "mlp.down", "all_gather", "tp", T * D * 2, 1),
        (WGRAD, "mlp.gate_up", "all_gather", "tp", T * D * 2, 1),
        (BWD, "mlp.gate_up", "reduce_scatter", "tp", T * D * 2, 1),
        (BWD, "attention.out", "all_gather", "tp", T * D * 2, 1),
        (WGRAD, "attention.qkv", "all_gather", "tp", T * D * 2, 1),
        (BWD, "attention.qkv", "reduce_scatter", "tp", T * D * 2, 1),
    ]


@pytest.mark.parametrize("stack", ["megatron", "torchtitan"])
def test_full_recompute_sends_the_forward_again_but_for_its_last_reduce(stack: str) -> None:
    from meshwright.spec.stack import STACKS

    ledger = build(LLAMA_70B, WORKLOAD, parse_layout("tp=8 sp mb=1 recompute=full"), STACKS[stack])
    again = sent(ledger.layer(LayerBlock(DENSE, "full")).recompute)
    assert again == [(AGAIN, *row[1:]) for row in SEQUENCE_PARALLEL_FORWARD[:-1]]


def test_selective_recompute_of_plain_attention_sends_nothing() -> None:
    assert sent(layer("tp=8 sp mb=1", recompute="selective").recompute) == []


@pytest.mark.parametrize("kind", ["ring", "zigzag", "striped"])
def test_ring_passes_keys_and_values_and_their_gradients_home(kind: str) -> None:
    """Liu et al. (arXiv 2310.01889), section 3: cp - 1 exchanges each way, and cp of the gradients in fp32. Each of a rank's own chunk:
    T/cp tokens, K/tp heads, k and v."""
    chunk = (T // 4) * (8 // 2) * (128 + 128)
    block = layer(f"tp=2 cp=4:{kind} mb=1")
    own = [row for row in sent(block.rows()) if row[3] != "tp"]
    assert own == [
        (FWD, "attention.core", "send", "ring", chunk * 2, 3),
        (FWD, "attention.core", "recv", "ring", chunk * 2, 3),
        (BWD, "attention.core", "send", "ring", chunk * 2, 3),
        (BWD, "attention.core", "recv", "ring", chunk * 2, 3),
        (BWD, "attention.core", "send", "ring", chunk * 4, 4),
        (BWD, "attention.core", "recv", "ring", chunk * 4, 4),
    ]


def test_ulysses_swaps_q_packed_kv_and_output_and_mirrors_them() -> None:
    """Jacobs et al. (arXiv 2309.14509), section 3.2."""
    q, kv = (T // 4) * 32 * 128 * 2, (T // 4) * 4 * 256 * 2
    assert [row for row in sent(layer("tp=2 cp=4:ulysses mb=1").rows()) if row[3] != "tp"] == [
        (FWD, "attention.core", "all_to_all", "ulysses", q, 1),
        (FWD, "attention.core", "all_to_all", "ulysses", kv, 1),
        (FWD, "attention.core", "all_to_all", "ulysses", q, 1),
        (BWD, "attention.core", "all_to_all", "ulysses", q, 1),
        (BWD, "attention.core", "all_to_all", "ulysses", kv, 1),
        (BWD, "attention.core", "all_to_all", "ulysses", q, 1),
    ]


def test_ulysses_on_fewer_kv_heads_than_ranks_sends_copies() -> None:
    """8 kv heads over tp=2 leave 4 for 8 ranks: each head goes to two of them, so k and v count twice."""
    rows = [row for row in sent(layer("tp=2 cp=8:ulysses mb=1").forward) if row[3] == "ulysses"]
    assert [row[4] for row in rows] == [(T // 8) * 32 * 128 * 2, 2 * (T // 8) * 4 * 256 * 2, (T // 8) * 32 * 128 * 2]


def test_selective_recompute_receives_again_but_sends_no_output() -> None:
    rows = sent(layer("tp=2 cp=4:ulysses mb=1", recompute="selective").recompute)
    assert [(row[0], row[2], row[4]) for row in rows] == [
        (AGAIN, "all_to_all", (T // 4) * 32 * 128 * 2),
        (AGAIN, "all_to_all", (T // 4) * 4 * 256 * 2),
    ]


def test_allgather_gathers_keys_and_values_packed() -> None:
    """Llama 3 (arXiv 2407.21783), section 3.3.2. The payload is the gathered tensor: all T tokens of a micro-batch."""
    whole = T * 4 * 256 * 2
    assert [row for row in sent(layer("tp=2 cp=4:allgather mb=1").rows()) if row[3] != "tp"] == [
        (FWD, "attention.core", "all_gather", "cp", whole, 1),
        (BWD, "attention.core", "all_gather", "cp", whole, 1),
        (BWD, "attention.core", "reduce_scatter", "cp", whole, 1),
    ]


def test_usp_swaps_inside_and_passes_on_outside() -> None:
    """Fang and Zhao (arXiv 2405.07719), section 3: after the swap a rank has U T/cp tokens of 1/U of the heads."""
    q, kv = (T // 4) * 32 * 128 * 2, (T // 4) * 4 * 256 * 2
    chunk = 2 * (T // 4) * (4 // 2) * 256
    rows = [(row[0], row[2], row[3], row[4], row[5]) for row in sent(layer("tp=2 cp=4:usp=2x2 mb=1").rows()) if row[3] != "tp"]
    swap_in = [("all_to_all", "ulysses", q, 1), ("all_to_all", "ulysses", kv, 1)]
    exchange = [("send", "ring", chunk * 2, 1), ("recv", "ring", chunk * 2, 1)]
    assert rows == [
        *((FWD, *row) for row in [*swap_in, *exchange, ("all_to_all", "ulysses", q, 1)]),
        *((BWD, *row) for row in [("all_to_all", "ulysses", q, 1), *exchange]),
        (BWD, "send", "ring", chunk * 4, 2), (BWD, "recv", "ring", chunk * 4, 2),
        *((BWD, *row) for row in reversed(swap_in)),
    ]  # fmt: skip


def test_ring_and_ulysses_volume_at_128k() -> None:
    """128K tokens, cp=8, one layer's forward, per rank: with 8 of 64 kv heads the ring sends less, with 64 it sends four times as much."""

    def gigabytes(kind: str, kv_heads: int) -> float:
        model = replace(LLAMA_70B, attention=replace(LLAMA_70B.attention, num_kv_heads=kv_heads))
        ledger = build(model, Training(seq=131_072, batch=1), parse_layout(f"cp=8:{kind} mb=1"))
        return sum(row.wire_bytes * row.times for row in ledger.layer(LayerBlock(DENSE, "none")).forward) / 1e9

    found = [gigabytes("ring", 8), gigabytes("ulysses", 8), gigabytes("ring", 64), gigabytes("ulysses", 64)]
    # 7 steps of 16,384 tokens x K x 256 x 2 bytes; 7/8 of 16,384 x (2 N + 2 K) x 128 x 2 bytes
    assert found == [0.469762048, 0.528482304, 3.758096384, 0.939524096]


def test_embedding_and_loss_with_a_cut_vocabulary() -> None:
    ledger = build(LLAMA_70B, WORKLOAD, parse_layout("tp=8 sp mb=1"))
    whole = T * D * 2
    assert sent(ledger.embedding.rows()) == [
        (FWD, "embedding", "reduce_scatter", "tp", whole, 1),
        (BWD, "embedding", "all_gather", "tp", whole, 1),
    ]
    assert sent(ledger.head.rows()) == [
        (FWD, "head", "all_gather", "tp", whole, 1),
        (FWD, "loss", "all_reduce", "tp", T * 4, 1),
        (FWD, "loss", "all_reduce", "tp", 2 * T * 4, 1),
        (WGRAD, "head", "all_gather", "tp", whole, 1),
        (BWD, "head", "reduce_scatter", "tp", whole, 1),
    ]
    loss = sum(row.payload_bytes for row in ledger.head.forward if row.name == "loss" and row.op)
    assert loss == 96 * 1024  # for 8,192 tokens


def test_embedding_and_loss_without_sp() -> None:
    ledger = build(LLAMA_70B, WORKLOAD, parse_layout("tp=8 mb=1"))
    assert sent(ledger.embedding.rows()) == [(FWD, "embedding", "all_reduce", "tp", T * D * 2, 1)]
    assert [row[2:5] for row in sent(ledger.head.rows())] == [
        ("all_reduce", "tp", T * 4), ("all_reduce", "tp", 2 * T * 4), ("all_reduce", "tp", T * D * 2),
    ]  # fmt: skip


@pytest.mark.parametrize("sp", ["", "sp"])
def test_a_whole_vocabulary_sends_nothing(sp: str) -> None:
    ledger = build(LLAMA_70B, WORKLOAD, parse_layout(f"tp=8 {sp} vocab=off mb=1"))
    assert sent(ledger.embedding.rows()) == sent(ledger.head.rows()) == []


def test_experts_with_sp_gather_rows_over_etp() -> None:
    """T/tp tokens, 8 copies each; every etp rank works on all copies of its etp group (Megatron-Core's AlltoAll dispatcher)."""
    D, E = 7168, 256
    copies = (T // 4) * 8 * D * 2
    rows = [
        row
        for row in sent(layer("tp=4 sp dp=16 ep=16 etp=4 mb=1", DEEPSEEK_V3, moe=True).rows())
        if row[1].startswith("moe") and row[3] != "tp"
    ]
    assert rows == [
        (FWD, "moe.dispatch", "all_to_all", "ep", 8 * E, 1),
        (FWD, "moe.experts", "all_gather", "etp", 8 * E // 16 * 4, 1),  # counts, so that all pad to the longest part
        (FWD, "moe.dispatch", "all_to_all", "ep", copies, 1),
        (FWD, "moe.experts", "all_gather", "etp", 4 * copies, 1),
        (FWD, "moe.experts", "reduce_scatter", "etp", 4 * copies, 1),
        (FWD, "moe.combine", "all_to_all", "ep", copies, 1),
        (BWD, "moe.combine", "all_to_all", "ep", copies, 1),
        (BWD, "moe.experts", "all_gather", "etp", 4 * copies, 1),
        (BWD, "moe.experts", "reduce_scatter", "etp", 4 * copies, 1),
        (BWD, "moe.dispatch", "all_to_all", "ep", copies, 1),
    ]


def test_experts_without_sp_sum_their_outputs_over_etp() -> None:
    """The tp ranks hold the same tokens, hence the same copies: X rows on each, summed forward and backward."""
    copies = T * 2 * 96 * 2
    rows = [row for row in sent(layer("tp=4 dp=2 ep=2 etp=4 mb=1", SMALL_EXPERTS, moe=True).rows()) if row[1].startswith("moe")]
    assert rows == [
        (FWD, "moe.dispatch", "all_to_all", "ep", 8 * 24, 1),
        (FWD, "moe.dispatch", "all_to_all", "ep", copies, 1),
        (FWD, "moe.experts", "all_reduce", "etp", copies, 1),
        (FWD, "moe.combine", "all_to_all", "ep", copies, 1),
        (BWD, "moe.combine", "all_to_all", "ep", copies, 1),
        (BWD, "moe.experts", "all_reduce", "etp", copies, 1),
        (BWD, "moe.dispatch", "all_to_all", "ep", copies, 1),
    ]


@pytest.mark.parametrize(("sp", "axes"), [("", ["cp"]), ("sp", ["cp", "tp"])])
def test_aux_loss_sums_loads_and_scores_of_the_micro_batch(sp: str, axes: list[str]) -> None:
    block = layer(f"tp=2 {sp} cp=2 mb=1", SMALL_EXPERTS, moe=True)
    rows = [row for row in sent(block.rows()) if row[1] == "moe.router"]
    assert rows == [(FWD, "moe.router", "all_reduce", axis, 2 * 24 * 4, 1) for axis in axes]


def test_shared_expert_is_a_tensor_parallel_pair() -> None:
    rows = sent(layer("tp=4 sp dp=4 ep=4 etp=1 mb=1", DEEPSEEK_V3, moe=True).rows())
    whole = T * 7168 * 2
    assert [row for row in rows if "shared" in row[1]] == [
        (FWD, "moe.shared.gate_up", "all_gather", "tp", whole, 1),
        (FWD, "moe.shared.down", "reduce_scatter", "tp", whole, 1),
        (BWD, "moe.shared.down", "all_gather", "tp", whole, 1),
        (WGRAD, "moe.shared.gate_up", "all_gather", "tp", whole, 1),
        (BWD, "moe.shared.gate_up", "reduce_scatter", "tp", whole, 1),
    ]


def test_latents_travel_as_one_tensor() -> None:
    """Queries 1,536 wide, keys and values 512 + 64: the down projections are whole, their outputs enter the up projections together."""
    latents, whole = T * (1536 + 512 + 64) * 2, T * 7168 * 2
    rows = [row for row in sent(layer("tp=8 sp mb=1", DEEPSEEK_V3).rows()) if row[1].startswith("attention")]
    assert rows == [
        (FWD, "attention.q_up", "all_gather", "tp", latents, 1),
        (FWD, "attention.out", "reduce_scatter", "tp", whole, 1),
        (BWD, "attention.out", "all_gather", "tp", whole, 1),
        (WGRAD, "attention.q_up", "all_gather", "tp", latents, 1),
        (BWD, "attention.q_up", "reduce_scatter", "tp", latents, 1),
    ]


def test_without_a_query_latent_the_stream_travels_with_the_other_one() -> None:
    latents = T * (96 + 20 + 8) * 2
    rows = sent(layer("tp=8 mb=1", SMALL_LATENT_PLAIN_Q).rows())
    assert (BWD, "attention.q_up", "all_reduce", "tp", latents, 1) in rows


def test_latent_attention_rings_all_heads_whatever_num_kv_heads_says() -> None:
    """The core has N key and value heads of 192 + 128."""
    for num_kv_heads in (128, 1):
        model = replace(DEEPSEEK_V3, attention=replace(DEEPSEEK_V3.attention, num_kv_heads=num_kv_heads))
        rows = [row for row in sent(layer("tp=8 cp=2 mb=1", model).forward) if row[2] == "send"]
        assert rows == [(FWD, "attention.core", "send", "ring", (T // 2) * 16 * (192 + 128) * 2, 1)]


def test_multi_token_prediction_projects_whole() -> None:
    """Its projection is held whole over tp and applied to the stream; embedding and head come once more as blocks of their own."""
    ledger = build(DEEPSEEK_V3, WORKLOAD, parse_layout("tp=8 sp dp=8 ep=8 etp=1 mb=1"))
    assert sent(ledger.mtp.rows()) == []
    names = [block.name for block, _ in ledger.stage(0).blocks()]
    assert names == ["embedding", "dense", "moe", "head", "embedding", "mtp", "moe", "head"]


def test_learned_positions_and_tied_heads_send_like_others() -> None:
    ledger = build(GPT3_175B, Training(seq=2048, batch=8), parse_layout("tp=8 mb=1"))
    assert [row[2] for row in sent(ledger.embedding.rows())] == ["all_reduce"]
