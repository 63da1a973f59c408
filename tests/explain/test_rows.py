"""The rows of one rank: shapes, counts and times read off the ledger."""

from __future__ import annotations

import re
from collections import Counter
from math import prod

import pytest

from jobs import LAYOUTS, named, numbers
from meshwright.api import numbers_of
from meshwright.errors import InputError
from meshwright.explain.formula import in_full
from meshwright.explain.rows import JSON_KEYS, attended_pairs, explain_rows
from meshwright.job import Asked, resolve
from meshwright.mesh import strides
from meshwright.step_time import stage_parts
from meshwright.units import DTYPE_BYTES

FSDP = LAYOUTS["fsdp"]


def first_ranks(priced):
    """The first rank of each stage."""
    layout = priced.ledger.layout
    return [stage * strides(layout)["pp"] for stage in range(layout.pp)]


def test_a_tensor_parallel_message_of_8192_tokens_is_128_mib():
    """2 b s h bytes (Korthikanti et al., arXiv 2205.05198, section 4.2.2) with b=1, s=8192, h=8192."""
    rows = explain_rows(numbers(*FSDP), layer=0, phase="forward").rows
    messages = [row.payload_bytes for row in rows if row.axis == "tp"]
    assert messages == [128 << 20] * 4


def test_a_layer_is_told_in_the_order_of_the_step():
    """The column and row pairs of Shoeybi et al. (arXiv 1909.08053, section 3) with the gathers and scatters of sequence parallelism."""
    rows = explain_rows(numbers(*FSDP), layer=0, phase="forward").rows
    assert [(row.name, row.op) for row in rows] == [
        ("parameters", "all_gather"),
        ("attention.norm", None), ("attention.qkv", "all_gather"), ("attention.qkv", None), ("attention.rope", None),
        ("attention.core", None), ("attention.out", None), ("attention.out", "reduce_scatter"), ("residual", None),
        ("mlp.norm", None), ("mlp.gate_up", "all_gather"), ("mlp.gate_up", None), ("mlp.activation", None),
        ("mlp.down", None), ("mlp.down", "reduce_scatter"), ("residual", None),
    ]  # fmt: skip


def test_the_backward_gathers_the_saved_inputs_again():
    """Per layer, forward 2 gathers and 2 scatters; backward the two mirrors, and the two inputs that were saved sharded."""
    rows = explain_rows(numbers(*FSDP), layer=0).rows
    calls = Counter((row.phase == "forward", row.op) for row in rows if row.axis == "tp" and row.phase != "reduce")
    assert calls == {(True, "all_gather"): 2, (True, "reduce_scatter"): 2, (False, "all_gather"): 4, (False, "reduce_scatter"): 2}


def test_calls_are_layers_times_micro_batches():
    one = {row.number: row for row in explain_rows(numbers(*FSDP), layer=7).rows}
    assert {row.times for row in one.values() if row.phase == "forward"} == {64}  # 512 / (8 x 1)
    assert {row.layer for row in one.values()} == {7}
    every = [row for row in explain_rows(numbers(*FSDP)).rows if row.name == "mlp.down" and row.op is None]
    assert {(row.times, row.layer) for row in every} == {(64 * 80, "0-79")}


def test_layers_of_two_kinds_have_rows_of_their_own():
    """gpt-oss alternates windowed and full attention."""
    rows = explain_rows(named("windows"), phase="forward").rows
    layers = {row.layer for row in rows if row.name == "attention.core" and row.op is None}
    assert layers == {"0, 2, 4, 6, 8, ..., 34", "1, 3, 5, 7, 9, ..., 35"}


@pytest.mark.parametrize(
    ("name", "module", "before"),
    [
        ("fsdp", "attention.norm", "bf16[B/dp, S/tp, D]"),
        ("without-sp", "attention.norm", "bf16[B/dp, S, D]"),
        ("zigzag", "attention.norm", "bf16[B/dp, S/(cp,tp), D]"),
        ("ring", "attention.core", "bf16[B/dp, S/cp, N/tp, H]"),
        ("ulysses", "attention.core", "bf16[B/dp, S, N/(tp,cp), H]"),
        ("usp", "attention.core", "bf16[B/dp, S/ring, N/(tp,ulysses), H]"),
        ("experts", "moe.experts", "bf16[X, D]"),
        ("experts-etp", "moe.experts", "bf16[X, D]"),
    ],
)
def test_axes_of_one_rank_are_left_out(name, module, before):
    rows = explain_rows(named(name), phase="forward").rows
    assert next(row.before for row in rows if row.name == module and row.op is None) == before


@pytest.mark.parametrize("name", LAYOUTS)
def test_shapes_multiply_out_to_payloads(name):
    """DESIGN section 4.1: the tensor passed in; the full one for all_gather and reduce_scatter; shards tile it."""
    priced = named(name)
    seen = set()
    for rank in first_ranks(priced):
        for row in explain_rows(priced, rank=rank).rows:
            if row.op is None:
                continue
            before, after = (prod(shape) * DTYPE_BYTES[tensor.dtype] for shape, tensor in
                             ((row.before_shape, row.row.before), (row.after_shape, row.row.after)))  # fmt: skip
            assert row.payload_bytes == (after if row.op == "all_gather" else before), row
            if row.op == "all_gather":
                assert before * row.ranks == after, row
            elif row.op == "reduce_scatter":
                assert after * row.ranks == before, row
            else:
                assert before == after, row
            seen.add(row.op)
    assert "all_reduce" in seen


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "mla-mtp"])
def test_products_have_the_shapes_of_their_tensors(name):
    """[m, k] x [k, n]; of a grouped product each expert has an equal share of the rows."""
    priced = named(name)
    products = [row for rank in first_ranks(priced) for row in explain_rows(priced, rank=rank).rows if "matmul" in row.row.kind]
    assert products
    for row in products:
        batch, m, n, k = row.row.shape
        assert row.flops == 2 * batch * m * n * k
        if row.phase == "forward":
            assert batch * m * k == pytest.approx(prod(row.before_shape), rel=1e-12)  # m is a share, not always whole
            assert batch * m * n == pytest.approx(prod(row.after_shape), rel=1e-12)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in ("ring", "windows")])
def test_seconds_of_the_rows_are_those_of_the_step(name):
    """Compute is never hidden, so the rows' own seconds are the parts of the step. Sums in another order: some ulps."""
    priced = named(name)
    for stage, rank in enumerate(first_ranks(priced)):
        rows = [row for row in explain_rows(priced, rank=rank).rows if row.op is None]
        parts = stage_parts(priced, stage)
        for part, phases in (
            ("compute_s", ("forward", "backward_input", "backward_weight")),
            ("recompute_s", ("recompute",)),
            ("optimizer_s", ("optimizer",)),
        ):
            total = sum(row.times * row.each_s for row in rows if row.phase in phases)
            assert total == pytest.approx(getattr(parts, part), rel=1e-9, abs=1e-12)


def test_ranks_of_a_ring_with_contiguous_chunks_have_their_own_shares():
    """With a causal mask rank r of n has (2r+1)/n times the average as the sequence grows (Brandon et al., arXiv 2311.09431,
    section 2); exactly, its queries see r S/n earlier keys each, and those of its own chunk up to theirs."""
    priced = named("ring")
    local, flops = 2048, []
    for place in range(4):
        (core,) = (row for row in explain_rows(priced, rank=4 * place, layer=0, phase="forward").rows if row.row.kind == "attention")
        flops.append(core.flops)
    pairs = [place * local * local + local * (local + 1) // 2 for place in range(4)]
    assert [count / flops[0] for count in flops] == pytest.approx([count / pairs[0] for count in pairs], rel=1e-12)
    (average,) = {
        row.flops for row in priced.ledger.layer(priced.ledger.pipeline.chunks[0].layers[0][0]).forward if row.kind == "attention"
    }
    assert sum(flops) / 4 == pytest.approx(average, rel=1e-12)


def test_a_balanced_ring_has_equal_shares():
    shares = {
        row.flops
        for rank in (0, 12)
        for row in explain_rows(named("zigzag"), rank=rank, layer=0).rows
        if row.phase == "forward" and row.flops
    }
    assert len(shares) == len(
        {row.flops for row in explain_rows(named("zigzag"), rank=0, layer=0).rows if row.phase == "forward" and row.flops}
    )


@pytest.mark.parametrize("window", [None, 1, 100, 2048, 5000, 10_000])
def test_pairs_of_a_chunk_are_counted_one_by_one(window):
    """Every query sees itself and up to window - 1 tokens before it."""
    ledger = named("ring").ledger
    for place in range(4):
        queries = range(place * 2048, (place + 1) * 2048)
        assert attended_pairs(ledger, place, window) == sum(min(query + 1, window or query + 1) for query in queries)


def test_a_rank_shows_its_own_stage():
    priced = named("pipeline")
    last = explain_rows(priced, rank=63)
    assert (last.stage, last.layers, last.coordinates["pp"]) == (3, tuple(range(60, 80)), 3)
    names = {row.name for row in last.rows}
    assert "head" in names and "embedding" not in names
    assert "embedding" in {row.name for row in explain_rows(priced, rank=0).rows}


def test_a_layer_is_looked_up_on_the_first_rank_that_has_it():
    found = explain_rows(named("pipeline"), layer=45)
    assert (found.rank, found.stage) == (32, 2)


def test_a_layer_of_another_stage_says_which_ranks_have_it():
    with pytest.raises(InputError) as error:
        explain_rows(named("pipeline"), rank=3, layer=45)
    (mistake,) = error.value.mistakes
    assert (mistake.key, mistake.value, mistake.legal) == ("--layer", 45, "0-19 on rank 3 (stage 0)")
    assert "stage 2, ranks 32-47" in mistake.hint


def test_with_dualpipe_two_stages_have_a_layer_and_half_of_the_micro_batches():
    with pytest.raises(InputError, match=r"stage 1, ranks 16-31 and stage 2, ranks 32-47"):
        explain_rows(named("dualpipe"), rank=0, layer=25)
    found = explain_rows(named("dualpipe"), rank=16, layer=25)
    assert found.micro_batches == 128  # 512 / (2 x 1) is 256
    assert found.layers == tuple(range(20, 60))


def test_numbers_do_not_depend_on_the_phase():
    every = explain_rows(numbers(*FSDP), layer=0)
    some = explain_rows(numbers(*FSDP), layer=0, phase="reduce")
    assert some.rows == tuple(row for row in every.rows if row.phase == "reduce")
    assert some.rows and explain_rows(numbers(*FSDP), layer=0, row=some.rows[0].number).rows == some.rows[:1]


@pytest.mark.parametrize(
    ("asked", "keys"),
    [
        ({"rank": 64}, ["--rank"]),
        ({"rank": -1, "layer": 80, "phase": "sideways"}, ["--phase", "--rank", "--layer"]),
        ({"layer": 0, "row": 1000}, ["--row"]),
    ],
    ids=["rank", "all-together", "row"],
)
def test_what_is_not_there_is_refused(asked, keys):
    with pytest.raises(InputError) as error:
        explain_rows(numbers(*FSDP), **asked)
    assert [mistake.key for mistake in error.value.mistakes] == keys
    assert all(mistake.legal for mistake in error.value.mistakes)


def test_recomputed_rows_are_between_forward_and_backward():
    rows = explain_rows(named("without-sp"), layer=0).rows
    again = [row.number for row in rows if row.phase == "recompute"]
    assert again and max(row.number for row in rows if row.phase == "forward") < min(again)
    assert max(again) < min(row.number for row in rows if row.phase == "backward_input")


def test_a_row_of_json_has_the_keys_of_the_design():
    (row,) = explain_rows(numbers(*FSDP), layer=0, row=3).as_json()["rows"]
    assert row == {
        "phase": "forward", "layer": 0, "name": "attention.qkv", "before": "bf16[B/dp, S/tp, D]", "after": "bf16[B/dp, S, D]",
        "op": "all_gather", "axis": "tp", "tier": "nvlink", "payload_bytes": 134217728, "wire_bytes": 117440512, "flops": 0.0,
        "times": 64, "each_s": row["each_s"], "why": row["why"],
    }  # fmt: skip
    assert row["each_s"] > 117440512 / 450e9  # no link is faster than itself
    assert tuple(row) == JSON_KEYS and row["why"]


def test_multi_token_prediction_is_told_apart():
    rows = explain_rows(named("mla-mtp"), rank=7 * 64).rows
    assert {row.name for row in rows if row.layer == "mtp"} > {"mtp.projection", "attention.kv_up", "moe.experts", "head", "parameters"}


def test_the_fallback_of_an_uncausal_kernel_has_no_shares():
    asked = Asked(
        subject="gpt3-175b", cluster="a100-sxm-80g", layouts=("tp=8 cp=2:ring dp=1x4",), seq=2048, batch=64, stack="megatron-2021"
    )
    priced = numbers_of(resolve(asked))
    flops = [next(row.flops for row in explain_rows(priced, rank=rank, layer=0).rows if row.row.kind == "attention") for rank in (0, 8)]
    assert flops[0] == flops[1]


def said(layout: str, named_row: str, op: str | None, gpus: int = 16) -> dict[str, str]:
    """What is told in full of the first row of this name and collective."""
    asked = Asked(subject="llama-3.1-8b", source="a test", cluster="h100-sxm", gpus=gpus, layouts=(layout,), seq=8192, batch=64)
    priced = numbers_of(resolve(asked))
    row = next(row for row in explain_rows(priced).rows if row.name == named_row and row.op == op)
    return dict(in_full(explain_rows(priced, row=row.number), priced))


def test_a_speed_stands_beside_what_the_link_gives():
    """Inside one tier as its share; from several GPUs of a node as such, for each has an adapter; of a few bytes as latency."""
    inside = said("tp=4 sp dp=1x4 zero=1 mb=1", "attention.qkv", "all_gather")["rate"]
    reached, share = re.search(r" is ([\d.]+) GB/s a GPU, (\d+)% of nvlink's 450 GB/s$", inside).groups()
    assert round(float(reached) / 4.5) == int(share) < 100
    across = said("dp=1x16 zero=3 mb=1", "parameters", "all_gather")
    assert "8 of the group's GPUs share faster links, and each brings its own 50 GB/s of leaf" in across["rate"]
    assert float(re.search(r" is ([\d.]+) GB/s a GPU", across["rate"])[1]) > 50
    alone = said("tp=8 sp dp=1x2 zero=1 mb=1", "parameters", "all_gather")["rate"]  # one GPU of each node
    assert re.search(r"\d+% of leaf's 50 GB/s$", alone)
    scalars = said("tp=4 sp dp=1x4 zero=1 mb=1", "gradient_norm", "all_reduce")["rate"]
    assert scalars.startswith("latency, not bytes: at leaf's 50 GB/s these ")


def test_memory_traffic_is_a_share_of_what_the_memory_gives():
    told = said("tp=4 sp dp=1x4 zero=1 mb=1", "attention.norm", None)["memory traffic"]
    reached, share = re.search(r"; ([\d.]+) GB/s, (\d+)% of what the memory of h100-sxm gives$", told).groups()
    assert round(float(reached) / 33.5) == int(share)  # 3,350 GB/s


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved*2", "zb-v"])
def test_messages_of_a_pipeline_are_told_by_the_tier_that_they_cross(schedule):
    """Eight stages on two nodes: the fourth sends out of its node, all together as long as the step's part says."""
    asked = Asked(subject="llama-3.1-8b", cluster="h100-sxm", gpus=16, layouts=(f"tp=2 sp pp=8:{schedule}",), seq=8192, batch=64)
    priced = numbers_of(resolve(asked))
    tiers = {}
    for stage, rank in enumerate(first_ranks(priced)):
        rows = [row for row in explain_rows(priced, rank=rank).rows if row.axis == "pp"]
        sent = [row for row in rows if row.op == "send"]
        assert sum(row.times * row.each_s for row in sent) == pytest.approx(stage_parts(priced, stage).pp_s, rel=1e-9)
        tiers[stage] = {(row.op, row.phase): row.tier for row in rows}
    assert tiers[2]["send", "forward"] == "nvlink"
    assert tiers[3]["recv", "forward"] == ("leaf" if schedule == "zb-v" else "nvlink")  # there and, in a V, also on the way up
    assert tiers[3]["send", "forward"] == tiers[4]["recv", "forward"] == "leaf"
    assert tiers[4]["send", "backward_input"] == tiers[3]["recv", "backward_input"] == "leaf"
