"""A scaled plan is legal by the rules of plans, fits the ranks, exercises what the plan did, and says what was changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.prove.features import features
from meshwright.prove.scale import LARGEST_PARAMETERS, scale
from meshwright.spec.layout import Layout, parse_layout
from meshwright.spec.model import Attention, LayerKind, Model
from meshwright.spec.parameters import parameter_count
from meshwright.spec.rules import check
from meshwright.spec.workload import Training
from random_layouts import layouts
from sample_inputs import DEEPSEEK_V3, GPT2_XL, LLAMA_70B, MODELS, QWEN_MOE

PLANS = [
    (LLAMA_70B, "tp=8 sp dp=1x8 zero=3 mb=1", 8, "tp=2 sp dp=1x2 zero=3 mb=1"),
    (LLAMA_70B, "tp=16 sp dp=1x4 zero=1 mb=2", 8, "tp=4 sp dp=1x2 zero=1 mb=2"),  # 8 kv heads, cut and copied
    (LLAMA_70B, "tp=8 cp=8:usp=4x2 dp=1 mb=1", 8, "tp=2 cp=4:usp=2x2 dp=1x1 mb=1"),
    (LLAMA_70B, "tp=8 dp=4 pp=4:interleaved*5 zero=1 mb=1", 16, "tp=2 pp=4:interleaved*2 dp=1x2 zero=1 mb=1"),
    (LLAMA_70B, "tp=8 dp=4 pp=2:zb-v zero=1 mb=1", 8, "tp=2 pp=2:zb-v dp=1x2 zero=1 mb=1"),
    (GPT2_XL, "tp=5 dp=4 mb=2", 8, "tp=2 dp=1x2 mb=2"),
    (QWEN_MOE, "tp=4 sp ep=8 etp=1 dp=1x8 zero=1 mb=1", 8, "tp=2 sp ep=2 etp=1 dp=1x2 zero=1 mb=1"),
    (QWEN_MOE, "tp=4 ep=8 dp=2x8 mb=1", 16, "tp=2 ep=2 dp=2x2 mb=1"),
    (DEEPSEEK_V3, "ep=64 dp=1x128 zero=1 mb=1", 8, "ep=2 dp=1x4 zero=1 mb=1"),  # 4, so that expert state is sharded, too
]


def workload(layout: Layout, m: int = 8, seq: int = 1024) -> Training:
    return Training(seq=seq, batch=m * layout.dp * layout.mb)


@pytest.mark.parametrize(("model", "text", "ranks", "expected"), PLANS, ids=[plan[1] for plan in PLANS])
def test_published_plans_are_scaled_to_the_smallest_that_exercise_the_same(model, text, ranks, expected):
    layout = parse_layout(text)
    scaled = scale(model, workload(layout), layout, ranks)
    assert str(scaled.layout) == expected
    assert scaled.lost == ()
    assert "hidden_size" in " ".join(scaled.changes)


@given(
    layout=layouts(max_world=512), which=st.integers(0, len(MODELS) - 1), m=st.sampled_from([1, 2, 8]), ranks=st.sampled_from([2, 8, 16])
)
def test_every_scaled_plan_is_legal_small_and_like_the_plan(layout, which, m, ranks):
    model = MODELS[which]
    step = workload(layout, m)
    try:
        check(model, step, layout)
    except InputError:
        return
    try:
        scaled = scale(model, step, layout, ranks)
    except InputError as error:
        assert [mistake.key for mistake in error.mistakes] in (["ranks"], ["layout"])
        return
    check(scaled.model, scaled.workload, scaled.layout)
    assert scaled.layout.world_size <= ranks
    assert parameter_count(scaled.model, with_mtp=True) <= LARGEST_PARAMETERS
    assert features(scaled.model, scaled.workload, scaled.layout) == features(model, step, layout)
    again = scale(scaled.model, scaled.workload, scaled.layout, ranks)
    assert (again.model, again.layout, again.changes) == (scaled.model, scaled.layout, ())


def test_a_pipeline_that_loses_its_middle_says_so():
    """Eight ranks have room for its two ends alone."""
    layout = parse_layout("tp=8 dp=4 pp=16:1f1b zero=1 mb=1")
    scaled = scale(LLAMA_70B, workload(layout, m=32), layout, 8)
    assert str(scaled.layout) == "tp=2 pp=2 dp=1x2 zero=1 mb=1"
    assert scaled.lost == ("a stage between the ends of the pipeline",)


def test_the_structure_of_a_model_is_kept():
    layout = parse_layout("ep=8 dp=1x8 zero=1 mb=1")
    tiny = scale(DEEPSEEK_V3, workload(layout), layout, 8).model
    assert tiny.attention.mla is not None and tiny.attention.mla.q_lora_rank is not None
    assert [kind.moe for kind in tiny.layers] == [False, True]
    assert tiny.mtp_layers == 1
    moe, true = tiny.moe, DEEPSEEK_V3.moe
    assert moe is not None and true is not None
    assert (moe.score, moe.selection_bias, moe.shared_ffn_size > 0, moe.top_k) == (true.score, true.selection_bias, True, 2)
    assert moe.num_experts > moe.top_k


def test_windows_stay_shorter_than_the_sequence_or_longer():
    base = replace(LLAMA_70B, layers=(LayerKind(window=128), LayerKind()) * 18)
    layout = parse_layout("tp=8 dp=1 mb=1")
    for seq, shorter in ((1024, True), (64, False)):
        scaled = scale(base, workload(layout, seq=seq), layout, 8)
        windows = [kind.window for kind in scaled.model.layers]
        assert windows[1] is None
        assert (windows[0] < scaled.workload.seq) == shorter


def test_a_small_plan_runs_as_it_is():
    model = Model(
        name="small", vocab_size=50, hidden_size=32, ffn_size=48, attention=Attention(num_heads=6, num_kv_heads=2, head_dim=8),
        layers=(LayerKind(),) * 3,
    )  # fmt: skip
    layout = parse_layout("tp=2 dp=1x2 mb=1")
    scaled = scale(model, Training(seq=16, batch=4), layout, 8)
    assert (scaled.model, scaled.layout, scaled.changes) == (model, layout, ())


def test_too_few_ranks_are_told_with_what_would_do():
    layout = parse_layout("tp=8 cp=8:ulysses dp=2x8 zero=1 mb=1")
    with pytest.raises(InputError) as told:
        scale(LLAMA_70B, workload(layout), layout, 8)
    (mistake,) = told.value.mistakes
    assert (mistake.key, mistake.value, mistake.legal) == ("ranks", 8, "16 or more")
    assert "tp=2 cp=2:ulysses dp=2x2" in mistake.problem
