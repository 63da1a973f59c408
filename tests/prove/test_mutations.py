"""A runtime that is broken on purpose fails the proof, and the certificate names the place; so does a ledger that is."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest

import mutations
from meshwright.diff.mismatch import Mismatch, by_rank
from meshwright.diff.traffic import compare_traffic
from meshwright.ledger.build import Ledger
from meshwright.ledger.expected import expected_events
from meshwright.prove.question import Question
from meshwright.prove.run import ledger_of
from meshwright.prove.scale import scale
from meshwright.recording.read import Recording, read_recordings
from proof_cases import read_case
from proofs import WithRankProgram, proved

pytestmark = pytest.mark.dist

FORWARD, BACKWARD = "loss of step 0", "the loss agrees, so the backward differs"

MUTATIONS = {
    "row_sum_dropped": ("llama seq=8 m=1 - tp=2 dp=1x1 mb=1", ["missing on", "forward, layers.0.attention.out: all_reduce", FORWARD]),
    "column_gradient_sum_dropped": (
        "llama seq=8 m=1 - tp=2 dp=1x1 mb=1",
        ["missing on", "backward_input, head: all_reduce", "gradient of norm.weight in step 0", BACKWARD],
    ),
    "gradient_scaled": ("llama seq=8 m=1 - tp=2 dp=1x1 mb=1", ["first: gradient of head.weight in step 0: 1.00e-10", BACKWARD]),
    "embedding_gradient_forgets_the_first_token": ("llama seq=8 m=1 - tp=2 dp=1x1 mb=1", ["first: gradient of embedding.weight", BACKWARD]),
    "rotary_position_shifted": ("llama seq=8 m=1 - cp=2:ring dp=1x1 mb=1", [FORWARD, "worst: gradient of layers.0.attention.qkv.weight"]),
    "mask_position_shifted": ("llama seq=8 m=1 - cp=2:ring dp=1x1 mb=1", [FORWARD]),
    "kv_copies_not_summed": (
        "llama seq=8 m=1 - tp=4 dp=1x1 mb=1",
        ["missing on", "reduce, layers.1.attention.qkv: all_reduce", "first: gradient of layers.1.attention.qkv.weight", BACKWARD],
    ),
    "kv_copies_not_summed_under_fsdp": (
        "llama seq=8 m=1 - tp=4 dp=1x1 zero=3 mb=1",
        ["missing on", "reduce, layers.1.attention.qkv: all_reduce", "first: gradient of layers.1.attention.qkv.weight", BACKWARD],
    ),
    "norm_counts_kv_copies_twice": ("llama seq=8 m=1 - tp=4 dp=1x1 mb=1", ["gradient norm of step 0", "though every gradient agrees"]),
    "norm_counts_replicas_twice": ("llama seq=8 m=1 - dp=1x2 mb=1", ["gradient norm of step 0", "though every gradient agrees"]),
    "norms_not_summed_over_tp": (
        "llama seq=8 m=1 - tp=2 sp dp=1x1 mb=1",
        ["missing on", "tp, step 0, reduce, layers.0: all_reduce", "first: gradient of norm.weight"],
    ),
    "mean_of_means": ("llama seq=8 m=1 - dp=1x2 mb=1", [FORWARD]),
    "key_gradients_do_not_travel_back": (
        "llama seq=8 m=1 - cp=2:ring dp=1x1 mb=1",
        ["missing on", "layers.1.attention.core: send", "first: gradient of layers.1.attention.qkv.weight", BACKWARD],
    ),
    "ulysses_heads_out_of_order": ("llama seq=8 m=1 - cp=2:ulysses dp=1x1 mb=1", [FORWARD]),
    "gathered_keys_not_scattered": (
        "llama seq=8 m=1 - cp=2:allgather dp=1x1 mb=1",
        ["missing on", "layers.1.attention.core: reduce_scatter", "first: gradient of layers.1.attention.qkv.weight", BACKWARD],
    ),
    "stale_expert_splits": ("mixtral seq=8 m=1 - ep=2 dp=1x2 mb=1", ["splits on rank 0", "layers.1.moe.dispatch: all_to_all with rows"]),
    "combined_without_sorting_back": ("mixtral seq=8 m=1 - ep=2 dp=1x2 mb=1", [FORWARD, "moe"]),
    "balance_loss_of_own_tokens": ("mixtral seq=8 m=1 - cp=2 dp=1x1 mb=1", ["missing on", "cp, step 0", "layers.0.moe.router: all_reduce"]),
    "loads_not_summed": (
        "deepseek_v3 seq=8 m=1 - ep=2 dp=1x2 mb=1",
        ["layers.1.moe.router: all_reduce", "moe.router.selection_bias", "every gradient agrees"],
    ),
    "padded_vocabulary_not_masked": ("llama seq=8 m=1 - tp=4 dp=1x1 mb=1", [FORWARD]),
    "updated_weights_not_gathered": (
        "llama seq=8 m=1 - dp=1x2 zero=1 mb=1", ["missing on", "optimizer, layers.0: all_gather", "or the weights that step 0 left"],
    ),
    "gathered_weights_thrown_away": ("llama seq=8 m=1 - dp=1x2 zero=1 mb=1", ["loss of step 1", "or the weights that step 0 left"]),
    "gradients_kept_from_the_last_step": ("llama seq=8 m=2 - dp=1x2 mb=1", ["first: gradient of head.weight in step 1", BACKWARD]),
    "replicas_not_summed": (
        "llama seq=8 m=1 - dp=2x2 zero=3 mb=1", ["missing on", "dp_replicate, step 0", "layers.1: all_reduce", "gradient of head.weight"],
    ),
    "units_sent_in_another_order": ("llama seq=8 m=1 - dp=1x2 mb=1", ["order on ranks 0, 1", "dp_cp, step 0, reduce, layers.0"]),
    "units_swapped_on_one_rank": (
        "llama seq=8 m=1 - dp=1x2 mb=1",
        ["order on rank 0", "ranks disagree", "rank 0: all_reduce(sum) float64[8712] in layers.0", "copies", BACKWARD],
    ),
    "reduced_in_float32": ("llama seq=8 m=1 - dp=1x2 mb=1", ["dtype on", "layers.1: all_reduce in float32 instead of float64"]),
    "reduced_over_the_wrong_group": ("llama seq=8 m=1 - dp=2x2 zero=1 mb=1", ["group on rank 0", "layers.0", "[0, 2]", "dp_shard.0"]),
    "dropout_by_local_position": ("llama seq=8 m=1 dropout tp=2 sp dp=1x1 mb=1", [FORWARD]),
    "dropout_repeats_every_step": ("llama seq=8 m=1 dropout dp=1x2 mb=1", ["loss of step 1"]),
    "slopes_of_the_first_heads": ("bloom seq=8 m=1 - tp=2 dp=1x1 mb=1", [FORWARD, "worst: gradient of layers.0.attention.qkv.weight"]),
    "bias_added_on_every_rank": ("gpt2 seq=8 m=1 - tp=2 dp=1x1 mb=1", [FORWARD]),
    "norm_keeps_more_than_it_needs": ("llama seq=8 m=1 - tp=2 dp=1x1 mb=1", ["blocks save", "rank 0, layers.0: predicted", "4 differ"]),
    "one_rank_runs_another_norm_eps": ("llama seq=8 m=1 - tp=2 dp=1x1 mb=1", [FORWARD, "copies"]),
}  # fmt: skip
"""Each fault with a layout that meets it, and what the certificate must say."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_runtime_fails_and_the_place_is_named(name: str):
    line, told = MUTATIONS[name]
    certificate = proved(read_case(line), WithRankProgram(getattr(mutations, name)), steps=2)
    assert not certificate.passed
    text = certificate.text()
    assert all(part in text for part in told), text


def test_every_mutation_is_tried():
    assert set(MUTATIONS) == {name for name, value in vars(mutations).items() if hasattr(value, "__wrapped__")}


LEDGER_CASE = read_case("qwen3_moe seq=16 m=2 - tp=2 sp cp=2:ring ep=2 etp=1 dp=1x2 zero=1 mb=1")


@dataclass(frozen=True)
class Proved:
    """A ledger, recordings that equal it, and where the router sent the tokens."""

    ledger: Ledger
    recordings: list[Recording]
    loads: Any


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory, warm) -> Proved:
    from meshwright.runtime.proof_job import ProofJob, run_reference

    folder = tmp_path_factory.mktemp("recordings")
    case = LEDGER_CASE
    assert proved(case, warm, steps=1, folder=folder).passed
    question = Question(model=case.model, workload=case.workload, layout=case.layout)
    loads = run_reference(ProofJob(model=case.model, workload=case.workload, layout=case.layout, steps=1)).loads
    return Proved(ledger_of(question, scale(case.model, case.workload, case.layout, 8)), read_recordings(folder), loads)


def mismatches(proof: Proved, ledger: Ledger) -> tuple[Mismatch, ...]:
    expected = {recording.rank: expected_events(ledger, recording.rank, loads=proof.loads) for recording in proof.recordings}
    return compare_traffic(expected, proof.recordings).mismatches


def _of_layer(ledger: Ledger, moe: bool):
    """The block of the layer with experts (or the other), whose rows are then changed in place: of it alone, not of what it shares."""
    kinds = {block.kind.moe: block for chunk in ledger.pipeline.chunks_of(0) for block, _ in chunk.layers}
    block = ledger.layer(kinds[moe])
    block.sublayers = deepcopy(block.sublayers)
    return block


def _row(rows, name: str, call: str):
    return next(row for row in rows if row.name.endswith(name) and row.op == call)


def _drop(rows, name: str, call: str) -> None:
    rows.remove(_row(rows, name, call))


def _drop_forward(block, name: str, call: str) -> None:
    """A block's list is put together of its sublayers'."""
    (rows,) = (part.forward for part in block.sublayers if any(row.name.endswith(name) and row.op == call for row in part.forward))
    _drop(rows, name, call)


def _change(rows, name: str, call: str, **changes) -> None:
    row = _row(rows, name, call)
    for key, value in changes.items():
        setattr(row, key, value(getattr(row, key)) if callable(value) else value)


def half(value):
    return value // 2


LEDGER_MUTATIONS = {
    "a row of the forward is dropped": (
        lambda ledger: _drop_forward(_of_layer(ledger, False), "attention.out", "reduce_scatter"),
        "extra", "layers.1.attention.out",
    ),
    "a payload is halved": (
        lambda ledger: _change(_of_layer(ledger, False).forward, "mlp.down", "reduce_scatter", payload_bytes=half),
        "bytes", "layers.1.mlp.down",
    ),
    "a row of the backward is over another axis": (
        lambda ledger: _change(_of_layer(ledger, False).backward, "mlp.gate_up", "reduce_scatter", axis="cp"),
        "group", "layers.1.mlp.gate_up",
    ),
    "an exchange of the ring is forgotten": (
        lambda ledger: _change(_of_layer(ledger, True).backward, "attention.core", "send", times=lambda times: times - 1),
        "extra", "layers.0.attention.core",
    ),
    "gradients are reduced in another dtype": (
        lambda ledger: _change(ledger.layer_unit(ledger.model.layers[1]).step, "layers", "reduce_scatter",
                               before=lambda before: replace(before, dtype="float32")),
        "dtype", "layers.1",
    ),
    "the all_gather of updated weights is dropped": (
        lambda ledger: _drop(ledger.layer_unit(ledger.model.layers[1]).step, "layers", "all_gather"),
        "extra", "layers.1",
    ),
    "another op": (
        lambda ledger: _change(ledger.embedding.forward, "embedding", "reduce_scatter", op="all_reduce"),
        "op", "embedding",
    ),
    "the maximum of the loss becomes a sum": (
        lambda ledger: _change(ledger.head.forward, "loss", "all_reduce", reduce_op="sum"),
        "reduce_op", "loss",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEDGER_MUTATIONS)
def test_a_wrong_ledger_is_found_and_the_row_is_named(name: str, proof: Proved):
    right = proof.ledger
    assert mismatches(proof, right) == ()
    change, kind, module = LEDGER_MUTATIONS[name]
    wrong = Ledger(right.model, right.workload, right.layout, right.stack, right.precision, right.sizes, right.pipeline)
    change(wrong)
    found = mismatches(proof, wrong)
    assert {mismatch.module for mismatch in found} == {module}, by_rank(found)
    assert {mismatch.kind for mismatch in found} == {kind}, by_rank(found)
    assert {mismatch.rank for mismatch in found} == set(range(8)), "every rank sees it"
    assert all(mismatch.why or mismatch.recorded.call_site for mismatch in found), "the row's reason, or where an unexpected call came from"
