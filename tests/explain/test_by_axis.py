"""The lines by axis: sums of the rows, and figures that papers and guides give for them."""

from __future__ import annotations

import pytest

import meshwright as mw
from jobs import LAYOUTS, named, numbers
from meshwright.errors import InputError
from meshwright.explain.by_axis import LINES, busiest_stage, explain_by_axis
from meshwright.explain.rows import explain_rows
from meshwright.spec.parameters import parameter_count
from meshwright.step_time import step_parts
from shared_data import ROOT


def line(name, axis):
    return explain_by_axis(named(name)).line(axis)


@pytest.mark.parametrize("name", LAYOUTS)
def test_lines_sum_to_the_rows(name):
    priced = named(name)
    table = explain_by_axis(priced)
    rows = [row for row in explain_rows(priced, rank=table.rank).as_json()["rows"] if row["op"]]
    assert table.lines and [each.axis for each in table.lines] == list(LINES)
    assert sum(each.calls for each in table.lines) == sum(row["times"] for row in rows)
    assert sum(each.payload_bytes for each in table.lines) == sum(
        row["times"] * row["payload_bytes"] for row in rows if row["op"] != "recv"
    )
    # The rows' wire bytes are rounded to whole bytes for each call.
    wire = sum(row["times"] * row["wire_bytes"] for row in rows)
    assert abs(sum(each.wire_bytes for each in table.lines) - wire) <= sum(row["times"] for row in rows) / 2 + len(LINES)
    for op in {row["op"] for row in rows}:
        assert sum(each.collectives.get(op, 0) for each in table.lines) == sum(row["times"] for row in rows if row["op"] == op)


@pytest.mark.parametrize("name", LAYOUTS)
def test_exposed_seconds_are_the_parts_of_the_stage(name):
    """Tensor-parallel collectives are never hidden: the sums of their rows are the part. Sums in another order: some ulps."""
    table = explain_by_axis(named(name))
    exposed = {each.axis: each.exposed_s for each in table.lines}
    assert exposed["tp"] + exposed["sp"] + exposed["vocab"] == pytest.approx(table.parts.tp_s, rel=1e-9, abs=1e-12)
    assert {axis: exposed[axis] for axis in ("dp", "cp", "ep", "pp")} == {
        axis: getattr(table.parts, f"{axis}_s") for axis in ("dp", "cp", "ep", "pp")
    }
    assert exposed["other"] + table.host_s == pytest.approx(table.parts.other_s, rel=1e-9)


def test_waiting_for_the_host_is_not_a_collective():
    """The layers of a tiny model take the host longer to launch than the device to run; the scalars are two all_reduce of 12 bytes."""
    said = {"cluster": "h100-sxm", "layout": "tp=2 sp pp=2 dp=2 zero=1 mb=1", "seq": 64, "batch": 8}
    table = mw.explain(ROOT / "docs" / "small.json", by="axis", **said)
    rows = mw.explain(ROOT / "docs" / "small.json", rank=table.rank, **said).as_json()["rows"]
    scalars = [row for row in rows if row["op"] and row["payload_bytes"] <= 8]
    assert len(scalars) == 2
    assert table.line("other").exposed_s == pytest.approx(sum(row["each_s"] * row["times"] for row in scalars), rel=1e-9)
    assert table.host_s > 100 * table.line("other").exposed_s


@pytest.mark.parametrize("name", ["fsdp", "without-sp", "zigzag", "ulysses", "experts"])
def test_without_a_pipeline_they_are_the_parts_of_the_step(name):
    parts, _ = step_parts(named(name))
    assert explain_by_axis(named(name)).parts == parts


def test_the_rank_is_one_of_the_busiest_stage_unless_one_is_asked_for():
    priced = named("pipeline")
    assert busiest_stage(priced) == 3  # the head is more work than the embedding
    assert explain_by_axis(priced).rank == 48
    first = explain_by_axis(priced, rank=5)
    assert (first.rank, first.stage) == (5, 0)
    with pytest.raises(InputError, match="not one of 64 ranks"):
        explain_by_axis(priced, rank=64)


def test_unused_axes_cost_nothing():
    for each in explain_by_axis(numbers("llama-3.1-8b", "dp=1x8 zero=3 mb=1")).lines:
        if each.axis not in ("dp", "other"):
            assert (each.degree, each.cuts, each.calls, each.payload_bytes, each.exposed_s) == (1, "", 0, 0, 0.0)


def test_all_degrees_one_give_no_collective():
    assert [each.calls for each in explain_by_axis(numbers("llama-3.1-8b", "dp=1x1 mb=1")).lines] == [0] * len(LINES)


@pytest.mark.parametrize(("variant", "gb"), [("3", 2963), ("3:local", 1991), ("3:keep", 31)])
def test_what_the_variants_of_zero_3_send(variant, gb):
    """70B, tp=8 dp=1x8 mb=1, batch 512, bf16 throughout: 3 P, 2 P and 3/64 P in each of 64 micro-batches, in whole GB. FSDP2 does
    not gather the root (embedding, norm and head, 2.1 B parameters) a second time for the backward, which the figures count."""
    priced = numbers("llama-3.1-70b", f"tp=8 sp dp=1x8 zero={variant} mb=1", precision="bf16")
    root = 0 if variant == "3:keep" else 64 * 2 * (2 * 128_256 + 1) * 8192 / 8 * 7 / 8
    assert (explain_by_axis(priced).line("dp").wire_bytes + root) / 1e9 == pytest.approx(gb, abs=1)


@pytest.mark.parametrize(("zero", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_sends_twice_or_three_times_the_parameters(zero, times):
    """Rajbhandari et al. (arXiv 1910.02054), section 7: 2 Psi elements for stages 0 to 2, 3 Psi for stage 3, times (n-1)/n; with
    one micro-batch. The root of stage 3 is gathered once, which takes 1.05 B of 24.1 B elements away."""
    priced = numbers("llama-3.1-8b", f"dp=1x8 zero={zero} mb=1", precision="bf16", batch=8)
    model = priced.ledger.model
    elements = explain_by_axis(priced).line("dp").wire_bytes / 2 / (7 / 8)
    once = 2 * model.vocab_size * model.hidden_size + model.hidden_size if zero == 3 else 0
    assert elements == pytest.approx(times * parameter_count(model) - once, rel=1e-9)


def test_tensor_parallelism_sends_four_all_reduces_a_layer():
    """Shoeybi et al. (arXiv 1909.08053), section 3: 2 forward, 2 backward, of b s h words; 8 b s h words x (N-1)/N on a ring."""
    priced = numbers("llama-3.1-70b", "tp=8 dp=1x8 mb=1")
    tp = explain_by_axis(priced).line("tp")
    assert tp.collectives == {"all_reduce": 4 * 80 * 64}
    assert tp.wire_bytes == 8 * 8192 * 8192 * 2 * 7 // 8 * 80 * 64


def test_sequence_parallelism_sends_ten_words_instead_of_eight():
    """Korthikanti et al. (arXiv 2205.05198), section 4.2.2: the same as tensor parallelism, and one more gather of each saved
    input in the backward (Megatron-LM keeps it sharded)."""
    table = explain_by_axis(numbers("llama-3.1-70b", "tp=8 sp dp=1x8 mb=1"))
    sp = table.line("sp")
    assert table.line("tp").calls == 0
    assert {op: calls for op, calls in sp.collectives.items() if op != "all_reduce"} == {
        "all_gather": 6 * 80 * 64,
        "reduce_scatter": 4 * 80 * 64,
    }
    norms = (2 * 80 + 1) * 8192 * 2 * 2 * 7 // 8  # the norms' gradients, all_reduced in bf16 once per step
    assert sp.wire_bytes == 10 * 8192 * 8192 * 2 * 7 // 8 * 80 * 64 + norms


def test_a_ring_passes_keys_and_values_and_their_gradients():
    """Llama-3-70B, 128K tokens, cp=8: keys and values of one layer forward are 0.470 GB a rank on a ring; with Ulysses q, k, v and
    the output are 0.528 GB (the figures are of one layer without tp)."""
    layers = 80
    ring = explain_by_axis(numbers("llama-3.1-70b", "cp=8:ring dp=1x1 mb=1", seq=131_072, batch=1)).line("cp")
    forward = 7 * 2 * 16_384 * 2 * 8 * 128  # 7 steps of T = 16,384 tokens' keys and values in bf16
    backward = forward + 8 * 4 * 16_384 * 2 * 8 * 128  # again, and 8 steps of their gradients in fp32
    assert forward / 1e9 == pytest.approx(0.470, abs=5e-4)
    assert ring.wire_bytes == layers * (forward + backward)
    swap = explain_by_axis(numbers("llama-3.1-70b", "cp=8:ulysses dp=1x1 mb=1", seq=131_072, batch=1)).line("cp")
    assert swap.wire_bytes / layers / 2 / 1e9 == pytest.approx(0.528, abs=5e-4)


def test_vocabulary_parallel_statistics_are_three_floats_a_token():
    """A maximum, a sum of exponentials and the target's logit in fp32: 96 KiB per 8,192 tokens (arXiv 1909.08053, section 3)."""
    rows = [row for row in explain_rows(named("fsdp")).rows if row.name == "loss" and row.op]
    assert sum(row.payload_bytes for row in rows) == 96 << 10


def test_what_is_cut_is_told_with_its_sizes():
    assert line("fsdp", "tp").cuts == "N 64/8, K 8/8, F 28,672/8"
    assert line("fsdp", "dp").cuts == "batch 512/8; parameters, gradients, optimizer state /8"
    assert line("zero2-kv-copies", "tp").cuts == "N 64/16, K 8/16, F 28,672/16, each kv head on 2 ranks"
    assert line("pipeline", "pp").cuts == "L 80/4; 1f1b"
    assert line("interleaved", "pp").cuts == "L 80/4; interleaved*4"
    assert line("usp", "cp").cuts == "S 8,192/8 everywhere; usp=4x2"
    assert line("experts-etp", "ep").cuts == "E 128/4, Fe 768/4 (etp)"
    assert line("gpt2-tied", "vocab").cuts == "V 50,260/5"  # padded
