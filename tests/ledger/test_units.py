"""What data parallelism, ZeRO and the pipeline send, against DESIGN section 4.1 and the papers behind it."""

from __future__ import annotations

import pytest

from ledger.models import DEEPSEEK_V3, DENSE, EXPERTS, GPT3_175B, LLAMA_70B, SMALL_GROUPED, SMALL_LATENT
from ledger.sums import payload_bytes, rank_rows, wire_bytes
from meshwright.ledger.build import Ledger, build, step_rows
from meshwright.ledger.data_parallel import Unit
from meshwright.ledger.parameters import local, shard_numel
from meshwright.ledger.rows import Row
from meshwright.spec.layout import parse_layout
from meshwright.spec.model import Model
from meshwright.spec.parameters import Parameter
from meshwright.spec.workload import Training

LAYER_PARAMETERS = 2 * 8192 + (64 + 16) * 128 * 8192 + 8192 * 8192 + 3 * 8192 * 28_672
"""Of Llama-3-70B: two norms, q k v, out, gate up down (Grattafiori et al., arXiv 2407.21783, table 3)."""


def ledger_of(layout: str, model: Model = LLAMA_70B, precision: str | None = "bf16", batch: int = 512) -> Ledger:
    return build(model, Training(seq=8192 if model is not GPT3_175B else 2048, batch=batch, precision=precision), parse_layout(layout))


def unit_of(layout: str, model: Model = LLAMA_70B, moe: bool = False, precision: str | None = "bf16") -> Unit:
    return ledger_of(layout, model, precision).layer_unit(EXPERTS if moe else DENSE)


def sent(rows: list[Row]) -> list[tuple[object, ...]]:
    return [(row.op, row.axis, row.payload_bytes) for row in rows if row.op]


def test_zero_0_sums_gradients_once_per_step() -> None:
    unit = unit_of("dp=2x4 zero=0 mb=1")
    assert sent(unit.forward) == sent(unit.backward) == []
    assert sent(unit.step) == [("all_reduce", "dp_cp", 2 * LAYER_PARAMETERS)]


def test_zero_1_scatters_sums_over_replicas_and_gathers() -> None:
    """Rajbhandari et al. (arXiv 1910.02054), section 7.1: what an all_reduce sends, in two halves."""
    unit = unit_of("dp=2x4 zero=1 mb=1")
    assert sent(unit.forward) == sent(unit.backward) == []
    assert sent(unit.step) == [
        ("reduce_scatter", "fsdp", 2 * LAYER_PARAMETERS),
        ("all_reduce", "dp_replicate", 2 * LAYER_PARAMETERS // 4),
        ("all_gather", "fsdp", 2 * LAYER_PARAMETERS),
    ]


def test_zero_2_scatters_every_micro_batch() -> None:
    unit = unit_of("dp=2x4 zero=2 mb=1")
    assert sent(unit.backward) == [("reduce_scatter", "fsdp", 2 * LAYER_PARAMETERS)]
    assert sent(unit.step) == [("all_reduce", "dp_replicate", 2 * LAYER_PARAMETERS // 4), ("all_gather", "fsdp", 2 * LAYER_PARAMETERS)]


FULL = 2 * LAYER_PARAMETERS
ZERO_3 = {
    "3": ([("all_gather", "fsdp", FULL)], [("all_gather", "fsdp", FULL), ("reduce_scatter", "fsdp", FULL)], []),
    "3:local": ([("all_gather", "fsdp", FULL)], [("all_gather", "fsdp", FULL)], [("reduce_scatter", "fsdp", FULL)]),
    "3:keep": ([], [], [("all_gather", "fsdp", FULL), ("reduce_scatter", "fsdp", FULL)]),
}


@pytest.mark.parametrize("zero", ZERO_3)
def test_zero_3_gathers_and_scatters_by_variant(zero: str) -> None:
    unit = unit_of(f"dp=2x4 zero={zero} mb=1")
    forward, backward, once = ZERO_3[zero]
    assert sent(unit.forward) == forward
    assert sent(unit.backward) == backward
    assert sent(unit.step) == [*once, ("all_reduce", "dp_replicate", FULL // 4)]


def test_the_root_is_not_gathered_again() -> None:
    """FSDP2 keeps the root's parameters from its forward to the end of the backward."""
    root = ledger_of("dp=1x4 zero=3 mb=1").root(True, True)
    assert [row.op for row in root.forward] == ["all_gather"]
    assert [row.op for row in root.backward] == ["reduce_scatter"]


def test_zero_3_gathers_half_of_what_it_reduces_in_fp32() -> None:
    """The default recipe with zero=3: bf16 gathered, fp32 gradients."""
    unit = unit_of("dp=1x4 zero=3 mb=1", precision=None)
    assert sent(unit.forward) == [("all_gather", "fsdp", 2 * LAYER_PARAMETERS)]
    assert sent(unit.backward)[1] == ("reduce_scatter", "fsdp", 4 * LAYER_PARAMETERS)


def test_context_parallel_ranks_shard_and_sum_too() -> None:
    assert sent(unit_of("cp=2 dp=2 zero=0 mb=1").step) == [("all_reduce", "dp_cp", 2 * LAYER_PARAMETERS)]
    row = unit_of("cp=2 dp=2 zero=1 mb=1").step[0]
    assert (row.axis, row.ranks) == ("fsdp", 4)


@pytest.mark.parametrize(("zero", "gigabytes"), [("3", 2934.2), ("3:local", 1961.8), ("3:keep", 30.9)])
def test_traffic_of_zero_3_on_64_gpus(zero: str, gigabytes: float) -> None:
    """What one rank of tp=8 dp=1x8 sends per step for 64 micro-batches of Llama-3-70B in bf16: 2 P bytes of each gather and scatter times
    7/8, with P = 70.6e9 / 8. Three, two or no passes over the layers per micro-batch; the root's second gather is left out."""
    stage = ledger_of(f"tp=8 dp=1x8 zero={zero} mb=1").stage(0)
    total = sum(count for (_, axis), count in wire_bytes(stage).items() if axis == "fsdp")
    layers, root = 80 * (LAYER_PARAMETERS - 2 * 8192) / 8 + 80 * 2 * 8192, 2 * 128_256 * 8192 / 8 + 8192
    passes = {"3": (64 * 3, 64 * 2), "3:local": (64 * 2 + 1, 64 + 1), "3:keep": (2, 2)}[zero]
    assert total == 7 / 8 * 2 * (passes[0] * layers + passes[1] * root)
    assert total / 1e9 == pytest.approx(gigabytes, abs=0.05)  # the figure's own last digit


def test_shards_are_padded_on_dim_0() -> None:
    """As FSDP2 pads: 50 rows on 3 ranks are 17 each."""
    sizes = ledger_of("mb=1").sizes
    assert shard_numel([local(Parameter("", "weight", (50, 8)), sizes)], 3) * 3 == 51 * 8


NORMS = 2 * 8192


@pytest.mark.parametrize(("zero", "elements"), [(0, NORMS), (1, NORMS // 4), (3, NORMS // 4)])
def test_norms_under_sp_are_summed_over_tp(zero: int, elements: int) -> None:
    """Each tp rank saw its own tokens. Under ZeRO the sum runs on the shards."""
    step = sent(unit_of(f"tp=2 sp dp=1x4 zero={zero} mb=1").step)
    assert ("all_reduce", "tp", 2 * elements) in step
    assert not any(axis == "tp" for _, axis, _ in sent(unit_of(f"tp=2 dp=1x4 zero={zero} mb=1").step))


def test_head_norms_are_summed_over_tp_even_without_sp() -> None:
    """Their gradient is a sum over the rank's heads (Qwen3's q and k norms): 2 x 16 channels in bf16."""
    assert ("all_reduce", "tp", 2 * 2 * 16) in sent(unit_of("tp=2 mb=1", SMALL_GROUPED).step)


def test_a_whole_vocabulary_under_sp_joins_the_sum_over_tp() -> None:
    with_table, D, V = ledger_of("tp=2 sp vocab=off mb=1").root(True, True), 8192, 128_256
    assert ("all_reduce", "tp", 2 * (2 * V * D + D)) in sent(with_table.step)
    assert ("all_reduce", "tp", 2 * D) in sent(ledger_of("tp=2 sp mb=1").root(True, True).step)
    assert not any(axis == "tp" for _, axis, _ in sent(ledger_of("tp=2 vocab=off mb=1").root(True, True).step))


@pytest.mark.parametrize(("tp", "copies"), [(8, 1), (16, 2), (64, 8)])
def test_fewer_kv_heads_than_tp_ranks_sum_the_gradients_of_their_copies(tp: int, copies: int) -> None:
    """8 kv heads: a rank of tp=16 holds one, and its neighbour the same one."""
    rows = [row for row in unit_of(f"tp={tp} dp=4 mb=1").step if row.axis == "kv"]
    assert [(row.op, row.ranks, row.payload_bytes) for row in rows] == [("all_reduce", copies, 2 * 2 * 128 * 8192)] * (copies > 1)


@pytest.mark.parametrize(("zero", "when"), [("0", "step"), ("1", "step"), ("2", "backward"), ("3", "backward"), ("3:keep", "backward")])
def test_when_copies_of_kv_heads_are_summed(zero: str, when: str) -> None:
    unit = unit_of(f"tp=16 dp=4 zero={zero} mb=1")
    found = {name: [row.axis for row in getattr(unit, name)].count("kv") for name in ("forward", "backward", "step")}
    assert found == {"forward": 0, "backward": 0, "step": 0, when: 1}
    rows = getattr(unit, when)
    reduce = next(index for index, row in enumerate(rows) if row.op == "reduce_scatter" or row.axis == "dp_cp") if zero != "3:keep" else 1
    assert [row.axis for row in rows].index("kv") < reduce


def test_experts_shard_over_the_rest_of_the_fold() -> None:
    """tp=2 x dp_shard=8 ranks fold into ep=4 x etp=1 x 4: each expert is on four ranks of a replica, and on 2 x 4 in all."""
    unit = unit_of("tp=2 sp dp=2x8 ep=4 etp=1 zero=1 mb=1", SMALL_LATENT, moe=True)
    dense, experts = unit.parts
    assert (dense.ranks, dense.all_ranks, experts.ranks, experts.all_ranks) == (8, 16, 4, 8)
    one = 3 * 96 * 48  # gate, up, down of one expert
    assert experts.numel == 16 // 4 * one
    rows = [(row.op, row.axis, row.payload_bytes) for row in unit.step if row.op and "experts" in row.name]
    assert rows == [
        ("reduce_scatter", "edp", 2 * 4 * one),
        ("all_reduce", "dp_replicate", 2 * one),
        ("all_gather", "edp", 2 * 4 * one),
    ]


def test_selection_bias_follows_the_load_of_every_moe_layer() -> None:
    """58 layers and the multi-token-prediction layer; int64 counts of 256 experts; with sp over tp as well."""
    for sp, axis in (("", "dp_cp"), (" sp", "dp_cp_tp")):
        etp = "etp=1" if sp else ""
        ledger = ledger_of(f"tp=2{sp} dp=1x8 ep=8 {etp} mb=1", DEEPSEEK_V3)
        loads = [row for row in step_rows(ledger.stage(0)) if row.name == "moe.router"]
        assert {(row.op, row.axis, row.payload_bytes) for row in loads} == {("all_reduce", axis, 8 * 256)}
        assert sum(row.times for row in loads) == 59


def test_scalars() -> None:
    """One count of tokens over dp x cp, one sum of squares over the world."""
    ledger = ledger_of("tp=2 cp=2 pp=2 dp=2x2 mb=1")
    rows = [row for row in step_rows(ledger.stage(0)) if row.name in ("token_count", "gradient_norm")]
    assert [(row.op, row.axis, row.ranks, row.payload_bytes) for row in rows] == [
        ("all_reduce", "dp_cp", 8, 8),
        ("all_reduce", "world", 32, 4),
    ]


TABLE = 51_200 * 12_288 * 2


@pytest.mark.parametrize(
    ("layout", "holders"), [("pp=4", [0, 3]), ("pp=4:interleaved*2", [0, 3]), ("pp=4:zb-v", []), ("pp=4:dualpipe", []), ("", [])]
)
def test_a_tied_table_is_summed_where_two_stages_hold_it(layout: str, holders: list[int]) -> None:
    """In a V, and in dualpipe, one rank has both ends of the model and one table; with one stage there is nothing to sum."""
    ledger = ledger_of(f"{layout} dp=8 mb=1", GPT3_175B)
    found = [stage.index for stage in ledger.stages() for row in step_rows(stage) if row.axis == "embedding"]
    assert found == holders
    assert all(row.payload_bytes == TABLE for stage in ledger.stages() for row in step_rows(stage) if row.axis == "embedding")


def test_multi_token_prediction_needs_the_table_on_the_last_stage() -> None:
    ledger = ledger_of("pp=4 stages=16,15,15,15 dp=8 ep=8 mb=1", DEEPSEEK_V3)
    assert [stage.index for stage in ledger.stages() for row in step_rows(stage) if row.axis == "embedding"] == [0, 3]
    table = 129_280 * 7168
    assert ledger.root(False, True).numel == 2 * table + 7168
    assert ledger.root(True, False).numel == table


def test_dualpipe_sums_both_copies_of_every_stage() -> None:
    """Rank i holds stages i and p-1-i, and so does rank p-1-i: all of both is summed, on the shards under ZeRO."""
    ledger = ledger_of("pp=4:dualpipe dp=1x8 zero=1 mb=1")
    for stage in ledger.stages():
        mirrored = sum(row.payload_bytes * row.times for row in step_rows(stage) if row.axis == "mirror")
        assert mirrored == 2 * sum(unit.shard * count for unit, count in stage.units())
    assert not any(row.axis == "mirror" for row in step_rows(ledger_of("pp=4:zb-v dp=1x8 mb=1").stage(0)))


BOUNDARIES = {
    "pp=4": [(0, 1), (1, 1), (1, 1), (1, 0)],
    "pp=4:interleaved*2": [(1, 2), (2, 2), (2, 2), (2, 1)],
    "pp=4:zb-v": [(1, 1), (2, 2), (2, 2), (1, 1)],  # chunk 3 hands over to chunk 4 on the same rank
    "pp=4:dualpipe": [(1, 1), (2, 2), (2, 2), (1, 1)],  # two directions, half of the micro-batches each
}


@pytest.mark.parametrize("layout", BOUNDARIES)
def test_every_boundary_is_crossed_once_each_way(layout: str) -> None:
    ledger = ledger_of(f"tp=2 sp {layout} dp=1 mb=1")
    assert [stage.boundaries() for stage in ledger.stages()] == BOUNDARIES[layout]
    payload = 8192 // 2 * 8192 * 2
    for stage in ledger.stages():
        moved = [row for row, _ in rank_rows(stage) if row.axis == "pp"]
        assert {row.payload_bytes for row in moved} == {payload}
    sends = sum(payload_bytes(stage)["send", "pp"] for stage in ledger.stages())
    receipts = sum(payload_bytes(stage)["recv", "pp"] for stage in ledger.stages())
    chunks = 8 if "*" in layout or "zb-v" in layout else 4
    crossings = chunks - 1 - ("zb-v" in layout)
    assert sends == receipts == 2 * crossings * 512 * payload
