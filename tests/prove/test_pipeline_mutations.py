"""An executor of pipelines that is broken on purpose fails the proof, and the certificate names the place."""

from __future__ import annotations

import pytest

import pipeline_mutations
from pipeline_cases import read_pipeline_case
from proofs import WithRankProgram, proved

pytestmark = pytest.mark.dist

FORWARD, BACKWARD = "loss of step 0", "the loss agrees, so the backward differs"

MUTATIONS = {
    "two_sends_swapped": (
        "llama seq=8 m=2 - pp=2:gpipe dp=1x1 mb=1",
        ["order on rank 0: pp, step 0, micro-batch 1, chunk 0, forward, pipeline: send", FORWARD],
    ),
    "weight_half_dropped": (
        "llama seq=8 m=3 - pp=2:zb-h1 dp=1x2 mb=1",
        ["missing on ranks 2, 3: dp_cp, step 0, reduce, layers.1: all_reduce", "gradient of head.weight in step 0", BACKWARD],
    ),
    "weight_half_computes_nothing": (
        "llama seq=8 m=3 - pp=2:zb-h1 tp=2 sp dp=1x1 mb=1",
        ["missing on", "micro-batch 0, chunk 1, backward_weight, head: all_gather", "gradient of head.weight in step 0", BACKWARD],
    ),
    "shared_table_not_summed": (
        "gpt2 seq=8 m=2 - pp=2 dp=1x1 mb=1",
        ["missing on ranks 0, 1: embedding, step 0, reduce, embedding: all_reduce", "copies", "gradient of embedding.weight", BACKWARD],
    ),
    "norm_counts_shared_table_twice": (
        "gpt2 seq=8 m=2 - pp=2 dp=1x1 mb=1", ["gradient norm of step 0", "though every gradient agrees"],
    ),
    "mirrored_stages_not_summed": (
        "llama seq=8 m=4 - pp=2:dualpipe dp=1x1 mb=1",
        ["missing on ranks 0, 1: mirror, step 0, reduce, layers.0.gradients: all_reduce", "gradient of head.weight in step 0", BACKWARD],
    ),
    "mirrored_loads_not_summed": (
        "deepseek_v3 seq=8 m=4 - pp=2:dualpipe dp=1x1 mb=1",
        ["mirror, step 0, reduce, layers.1.moe.router: all_reduce", "moe.router.selection_bias", "every gradient agrees"],
    ),
    "reduced_before_the_last_micro_batch": (
        "llama seq=8 m=3 - pp=2 dp=1x2 mb=1", ["first: gradient of head.weight in step 0", BACKWARD],
    ),
    "root_reduced_with_the_head_alone": (
        "llama seq=8 m=2 - pp=2:zb-v dp=1x2 mb=1", ["dp_cp, step 0, reduce, root: all_reduce", "extra"],
    ),
    "gradient_of_the_micro_batch_before": (
        "llama seq=8 m=4 - pp=2:gpipe dp=1x1 mb=1", ["first: gradient of layers.0", BACKWARD],
    ),
    "activations_kept_for_one_more_micro_batch": (
        "llama seq=8 m=4 - pp=2 dp=1x1 mb=1",
        ["rank 0, chunk passes in flight: predicted 2, measured 3", "rank 1, chunk passes in flight: predicted 1, measured 2"],
    ),
    "stage_boundary_in_float32": (
        "llama seq=8 m=2 - pp=2 dp=1x1 mb=1", ["dtype on", "chunk 0, forward, pipeline: send in float32 instead of float64", FORWARD],
    ),
    "layer_recomputed_at_the_wrong_place": (
        "llama seq=8 m=2 - pp=2:interleaved*2 stages=2*4 dp=1x1 mb=1 recompute=full=1",
        ["rank 0, layers.4: predicted 2,304, measured", "2 differ"],
    ),
}  # fmt: skip
"""By the name of the fault: the case that shows it, and what the certificate must say of it."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_executor_is_found_and_the_place_is_named(name: str):
    text, said = MUTATIONS[name]
    certificate = proved(read_pipeline_case(text), WithRankProgram(getattr(pipeline_mutations, name)))
    assert not certificate.passed
    shown = certificate.text()
    assert [phrase for phrase in said if phrase not in shown] == [], shown


def test_every_mutation_is_tried():
    assert set(MUTATIONS) == {name for name, value in vars(pipeline_mutations).items() if hasattr(value, "__wrapped__")}
