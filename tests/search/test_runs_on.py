"""What each framework can express: known recipes of each, the line that excludes a layout, and masks against single layouts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright.search.runs_on import FRAMEWORKS, LIMITS, expressible, limits, obstacles, runnable, runnable_schedules, runs_on
from meshwright.spec.layout import DEFAULT_ORDER, parse_layout
from meshwright.spec.stack import STACKS
from sample_inputs import DEEPSEEK_V3, GPT2_XL, LLAMA_70B, MODELS, QWEN_MOE

ALL = set(FRAMEWORKS)

GPT3_175B = replace(
    GPT2_XL, attention=replace(GPT2_XL.attention, num_heads=96, num_kv_heads=96, head_dim=128), layers=GPT2_XL.layers[:1] * 96
)
MT_NLG_530B = replace(GPT3_175B, attention=replace(GPT3_175B.attention, num_heads=128, num_kv_heads=128), layers=GPT2_XL.layers[:1] * 105)

RECIPES = [
    # Megatron-LM: Narayanan et al. 2021 (arXiv 2104.04473), table 1, 175B; interleaved and ZeRO-1 variants of its README
    ("tp=8 pp=12 dp=16 vocab_pad=128", GPT3_175B, {"megatron", "deepspeed", "meshwright"}),
    ("tp=8 sp pp=4:interleaved*5 dp=16 zero=1 recompute=selective", LLAMA_70B, {"megatron", "meshwright"}),
    ("tp=8 sp cp=2 pp=4 dp=4 zero=1", LLAMA_70B, {"megatron", "meshwright"}),
    # MT-NLG 530B (arXiv 2201.11990, section 3.2) and BLOOM (arXiv 2211.05100, section 3.3): DeepSpeed ZeRO-1 with Megatron's tp
    ("tp=8 pp=35 dp=16 zero=1", MT_NLG_530B, {"megatron", "deepspeed", "meshwright"}),
    # Llama 3 405B (arXiv 2407.21783, section 3.3): all-gather context parallelism; FSDP with tp and no pipeline is torchtitan's 2-D
    ("tp=8 sp dp=64 zero=3", LLAMA_70B, {"megatron", "torchtitan", "meshwright"}),
    ("tp=8 sp cp=2:allgather dp=8 zero=3", LLAMA_70B, {"megatron", "torchtitan", "meshwright"}),
    ("tp=8 sp pp=4:dualpipe-v dp=8 zero=3:keep", LLAMA_70B, {"torchtitan", "meshwright"}),
    # plain FSDP and HSDP
    ("dp=64 zero=3", LLAMA_70B, ALL),
    ("dp=8x8 zero=3 recompute=full", LLAMA_70B, ALL),
    ("dp=64 zero=3:local", LLAMA_70B, {"fsdp", "meshwright"}),
    ("dp=64 zero=2", LLAMA_70B, {"megatron", "deepspeed", "meshwright"}),
    ("dp=64x1", LLAMA_70B, ALL),
    # DeepSpeed-Ulysses with ZeRO-3
    ("cp=8:ulysses dp=8 zero=3", LLAMA_70B, {"megatron", "deepspeed", "meshwright"}),
    # experts: Megatron-Core's folding, torchtitan's expert parallelism over FSDP ranks, DeepSpeed's AutoEP
    ("tp=4 sp etp=1 ep=8 pp=2 dp=8 zero=1", QWEN_MOE, {"megatron", "meshwright"}),
    ("dp=64 ep=8 zero=3", QWEN_MOE, {"megatron", "torchtitan", "deepspeed", "meshwright"}),
    # DeepSeek-V3 (arXiv 2412.19437, section 3.2) ran on its own framework
    ("pp=16:dualpipe dp=128 ep=64 zero=1 stages=" + ",".join(["4"] * 13 + ["3"] * 3), DEEPSEEK_V3, {"meshwright"}),
]


@pytest.mark.parametrize(("text", "model", "expected"), RECIPES, ids=[f"{model.name} {text}"[:60] for text, model, _ in RECIPES])
def test_recipes_run_where_they_are_known_to_run(text, model, expected):
    assert set(runs_on(parse_layout(text), model)) == expected


EXCLUDED = [
    # framework, key of the line, layout that only this line of the framework excludes
    ("megatron", "cp", "cp=2:striped", LLAMA_70B),
    ("megatron", "pp", "pp=4:zb-h1", LLAMA_70B),
    ("megatron", "vocab", "tp=8 vocab=off", LLAMA_70B),
    ("megatron", "zero", "pp=4 dp=8 zero=3", LLAMA_70B),
    ("megatron", "order", "tp=2 dp=2 order=dp-tp-cp-ep-pp", LLAMA_70B),
    ("megatron", "order", "tp=4 sp etp=1 ep=8 pp=2 dp=8 order=tp-cp-ep-pp-dp", QWEN_MOE),
    ("torchtitan", "tp", "tp=16", LLAMA_70B),
    ("torchtitan", "vocab", "tp=8 vocab=off", LLAMA_70B),
    ("torchtitan", "vocab_pad", "tp=8 vocab_pad=128", LLAMA_70B),
    ("torchtitan", "cp", "cp=2 dp=8 zero=3", LLAMA_70B),
    ("torchtitan", "pp", "pp=4:zb-h1", LLAMA_70B),
    ("torchtitan", "pp", "pp=2", GPT2_XL),
    ("torchtitan", "etp", "tp=4 sp", QWEN_MOE),
    ("torchtitan", "zero", "dp=8 zero=1", LLAMA_70B),
    ("torchtitan", "recompute", "recompute=full=3", LLAMA_70B),
    ("torchtitan", "order", "tp=2 pp=2 order=tp-cp-ep-pp-dp", LLAMA_70B),
    ("deepspeed", "sp", "tp=8 sp", LLAMA_70B),
    ("deepspeed", "tp", "tp=16", LLAMA_70B),
    ("deepspeed", "cp", "cp=2 dp=8", LLAMA_70B),
    ("deepspeed", "cp", "cp=2:ulysses pp=2", LLAMA_70B),
    ("deepspeed", "pp", "pp=4:interleaved*2", LLAMA_70B),
    ("deepspeed", "zero", "pp=4 dp=8 zero=2", LLAMA_70B),
    ("deepspeed", "zero", "dp=8 zero=3:keep", LLAMA_70B),
    ("deepspeed", "dp", "dp=2x8 zero=2", LLAMA_70B),
    ("deepspeed", "stages", "pp=2 stages=39,41", LLAMA_70B),
    ("deepspeed", "ep", "tp=4 etp=4 ep=8 dp=8", QWEN_MOE),
    ("deepspeed", "ep", "cp=4:ulysses dp=8 ep=8 zero=3", QWEN_MOE),
    ("deepspeed", "recompute", "recompute=selective", LLAMA_70B),
    ("deepspeed", "order", "tp=2 pp=2 order=tp-cp-ep-pp-dp", LLAMA_70B),
    ("fsdp", "tp", "tp=8", LLAMA_70B),
    ("fsdp", "zero", "dp=8 zero=1", LLAMA_70B),
    ("fsdp", "vocab_pad", "dp=8 vocab_pad=128", LLAMA_70B),
]


@pytest.mark.parametrize(("framework", "key", "text", "model"), EXCLUDED, ids=[f"{f}-{t}"[:50] for f, _, t, _ in EXCLUDED])
def test_one_line_of_the_table_excludes_a_layout(framework, key, text, model):
    layout = parse_layout(text)
    assert [limit.key for limit in obstacles(framework, layout, model)] == [key]
    assert framework not in runs_on(layout, model)


def test_every_line_of_the_table_excludes_something_here():
    used = [limit for framework, _, text, model in EXCLUDED for limit in obstacles(framework, parse_layout(text), model)]
    assert {id(limit) for limit in LIMITS} == {id(limit) for limit in used}


def test_every_line_has_its_source_and_every_framework_is_a_stack():
    assert all(limit.source and limit.legal and limit.framework in FRAMEWORKS for limit in LIMITS)
    assert set(FRAMEWORKS) <= set(STACKS)
    assert not limits("meshwright"), "what the rules accept, the runtime runs"


def test_a_schedule_that_only_the_own_executor_has_does_not_count_as_runnable():
    assert "meshwright" in runs_on(parse_layout("pp=4:zb-h1"), LLAMA_70B)
    assert not runnable(parse_layout("pp=4:zb-h1"), LLAMA_70B)
    assert runnable(parse_layout("pp=4:zb-v"), LLAMA_70B) and runnable(parse_layout("cp=2:striped"), LLAMA_70B)
    assert runnable_schedules(LLAMA_70B) == {"gpipe", "1f1b", "interleaved", "zb-v", "dualpipe-v"}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("zero", [("0", 0, ""), ("3", 3, ""), ("3:keep", 3, "keep"), ("1", 1, "")], ids=lambda z: f"zero={z[0]}")
@pytest.mark.parametrize("order", [DEFAULT_ORDER, "tp-cp-ep-pp-dp"])
def test_masks_equal_single_layouts(model, zero, order):
    rng = np.random.default_rng(1)
    degrees = {name: rng.choice([1, 1, 2, 4, 8, 16], 400) for name in ("tp", "cp", "pp", "dp_replicate", "dp_shard", "ep", "etp")}
    words = {
        "sp": False, "vocab": True, "vocab_pad": 1, "cp_kind": "allgather", "schedule": "1f1b", "stages": None, "zero": zero[1],
        "zero_variant": zero[2], "recompute": "none", "recompute_layers": None, "order": order,
    }  # fmt: skip
    many = SimpleNamespace(**degrees, **words)
    for framework in FRAMEWORKS:
        mask = np.broadcast_to(expressible(framework, many, model), 400)
        for i in range(400):
            one = SimpleNamespace(**{name: int(values[i]) for name, values in degrees.items()}, **words)
            assert bool(mask[i]) == bool(expressible(framework, one, model))
