"""Every hard rule refuses a layout that only it forbids, and accepts its neighbour."""

from dataclasses import replace
from itertools import permutations, product

import pytest

from meshwright.mesh import Mesh, fold_is_regular
from meshwright.schedule.build import schedule_mistakes
from meshwright.spec.layout import SCHEDULES, TWO_CHUNK_SCHEDULES, Layout, parse_layout
from meshwright.spec.rules import RULES, Case, check, legal
from meshwright.spec.workload import Training
from sample_inputs import DEEPSEEK_V3, GPT2_XL, H100_CLUSTER, LLAMA_70B, QWEN_MOE


def case(model, text, seq=8192, batch=512, precision=None, **more):
    layout = text if isinstance(text, Layout) else parse_layout(text)
    return Case(model=model, workload=Training(seq=seq, batch=batch, precision=precision), layout=layout, **more)


def broken(case):
    return {rule.code for rule in RULES if not rule.holds(case)}


def model_with(model, **changes):
    moe = {name: changes.pop(name) for name in ("num_experts", "expert_ffn_size", "shared_ffn_size") if name in changes}
    heads = {name: changes.pop(name) for name in ("num_heads", "num_kv_heads") if name in changes}
    changed = replace(model, **changes, attention=replace(model.attention, **heads))
    return replace(changed, moe=replace(changed.moe, **moe)) if moe else changed


LLAMA_ODD_FFN = model_with(LLAMA_70B, ffn_size=28_674)
LLAMA_48_HEADS = model_with(LLAMA_70B, num_heads=48, num_kv_heads=8, ffn_size=49_152)
DEEPSEEK_ODD_SHARED = model_with(DEEPSEEK_V3, shared_ffn_size=2050)
QWEN_ODD_EXPERT = model_with(QWEN_MOE, expert_ffn_size=770)

PAIRS = {
    # code: (a case that breaks this rule and no other, its neighbour that breaks none)
    "tp-heads": (case(model_with(LLAMA_70B, num_heads=8), "tp=16"), case(LLAMA_70B, "tp=16")),
    "tp-kv-heads": (case(LLAMA_48_HEADS, "tp=12"), case(LLAMA_48_HEADS, "tp=16")),
    "tp-ffn": (case(LLAMA_ODD_FFN, "tp=4"), case(LLAMA_ODD_FFN, "tp=2")),
    "tp-shared-ffn": (case(DEEPSEEK_ODD_SHARED, "tp=4"), case(DEEPSEEK_ODD_SHARED, "tp=2")),
    "sp-needs-tp": (case(LLAMA_70B, "sp dp=8"), case(LLAMA_70B, "tp=2 sp dp=8")),
    "sp-sequence": (case(LLAMA_70B, "tp=8 sp", seq=8196), case(LLAMA_70B, "tp=8", seq=8196)),
    "cp-sequence": (case(LLAMA_70B, "cp=4", seq=8196), case(LLAMA_70B, "cp=4:ring", seq=8196)),
    "cp-ulysses-heads": (case(LLAMA_70B, "tp=8 cp=16:ulysses"), case(LLAMA_70B, "tp=8 cp=16:usp=8x2")),
    "cp-ulysses-kv-heads": (case(LLAMA_48_HEADS, "tp=2 cp=6:ulysses", seq=6144), case(LLAMA_48_HEADS, "tp=2 cp=8:ulysses")),
    "seq-positions": (case(GPT2_XL, "dp=8", seq=2048), case(GPT2_XL, "dp=8", seq=1024)),
    "pp-layers": (case(LLAMA_70B, "pp=3"), case(LLAMA_70B, "pp=3 stages=26,28,26")),
    "stages-count": (case(LLAMA_70B, "pp=4 stages=40,40"), case(LLAMA_70B, "pp=2 stages=40,40")),
    "stages-sum": (case(LLAMA_70B, "pp=2 stages=40,41"), case(LLAMA_70B, "pp=2 stages=39,41")),
    "stages-empty": (case(LLAMA_70B, "pp=4 stages=40,0,30,10"), case(LLAMA_70B, "pp=4 stages=0,40,40,0")),
    "pp-one-stage": (case(LLAMA_70B, "pp=1:interleaved*2"), case(LLAMA_70B, "pp=2:interleaved*2")),
    "pp-interleaved-m": (case(LLAMA_70B, "pp=4:interleaved*2", batch=6), case(LLAMA_70B, "pp=4", batch=6)),
    "pp-dualpipe-stages": (
        case(LLAMA_70B, "pp=5:dualpipe"),
        case(LLAMA_70B, "pp=5:dualpipe-v"),
    ),
    "pp-dualpipe-even-m": (case(LLAMA_70B, "pp=4:dualpipe", batch=9), case(LLAMA_70B, "pp=4:dualpipe", batch=10)),
    "pp-dualpipe-m": (case(LLAMA_70B, "pp=4:dualpipe-v", batch=7), case(LLAMA_70B, "pp=4:dualpipe-v", batch=8)),
    "recompute-layers": (case(LLAMA_70B, "pp=4 recompute=full=21"), case(LLAMA_70B, "pp=4 recompute=full=20")),
    "ep-dense": (case(LLAMA_70B, "dp=8 ep=2"), case(QWEN_MOE, "dp=8 ep=2")),
    "etp-dense": (case(LLAMA_70B, "tp=2 sp etp=1"), case(QWEN_MOE, "tp=2 sp etp=1")),
    "ep-experts": (case(QWEN_MOE, "dp=3 ep=3", batch=513), case(QWEN_MOE, "dp=4 ep=4")),
    "etp-ffn": (case(QWEN_ODD_EXPERT, "tp=4"), case(QWEN_ODD_EXPERT, "tp=4 sp etp=1")),
    "ep-fold": (case(QWEN_MOE, "dp=4x2 ep=8"), case(QWEN_MOE, "dp=2x8 ep=8")),
    "ep-order": (
        case(model_with(QWEN_MOE, num_heads=12, num_kv_heads=12), "tp=6 sp pp=2 dp=2 ep=4 etp=1 order=tp-ep-pp-dp-cp", seq=6144),
        case(model_with(QWEN_MOE, num_heads=12, num_kv_heads=12), "tp=6 sp pp=2 dp=2 ep=4 etp=1", seq=6144),
    ),
    "etp-sp": (case(QWEN_MOE, "tp=4 etp=2"), case(QWEN_MOE, "tp=4 sp etp=2")),
    "etp-order": (case(QWEN_MOE, "tp=4 cp=2 order=cp-tp-ep-dp-pp"), case(QWEN_MOE, "tp=4 sp cp=2 order=cp-tp-ep-dp-pp")),
    "batch": (case(LLAMA_70B, "dp=8 mb=3"), case(LLAMA_70B, "dp=8 mb=4")),
    "gpus": (case(LLAMA_70B, "tp=8 dp=4", gpus=64), case(LLAMA_70B, "tp=8 dp=8", gpus=64)),
    "cluster-gpus": (
        case(LLAMA_70B, "dp=32", cluster=replace(H100_CLUSTER, num_gpus=16)),
        case(LLAMA_70B, "dp=32", cluster=H100_CLUSTER),
    ),
    "zero3-precision": (
        case(LLAMA_70B, "dp=8 zero=3", precision="bf16-fp32grad"),
        case(LLAMA_70B, "dp=8 zero=2", precision="bf16-fp32grad"),
    ),
}  # fmt: skip


def test_every_rule_has_a_pair_here():
    assert set(PAIRS) == {rule.code for rule in RULES}
    assert len({rule.code for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("code", PAIRS)
def test_a_rule_refuses_what_it_alone_forbids(code):
    wrong, right = PAIRS[code]
    assert broken(wrong) == {code}
    assert broken(right) == set()
    assert legal(wrong) == False  # noqa: E712 - a numpy bool would do, None would not
    assert legal(right) == True  # noqa: E712
    check(right.model, right.workload, right.layout, right.cluster, right.gpus)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_gives_its_reason(rule):
    assert rule.holds.__doc__, "the docstring of the condition is the reason in the docs"


def test_twelve_layers_on_64_stages_are_refused():
    """A known peer accepts them and reports a great rate."""
    assert broken(case(model_with(LLAMA_70B, layers=LLAMA_70B.layers[:12]), "pp=64")) == {"pp-layers"}


@pytest.mark.parametrize("layers", [10, 30])
def test_layers_that_do_not_divide_are_never_dropped(layers):
    """30 layers on 4 stages build 28 elsewhere, without a word."""
    model = model_with(LLAMA_70B, layers=LLAMA_70B.layers[:layers])
    assert broken(case(model, "pp=4")) == {"pp-layers"}
    assert broken(case(model, f"pp=4 stages={layers - 6},2,2,2")) == set()


def test_two_kv_heads_on_four_ranks_are_shared_not_cut():
    model = model_with(LLAMA_70B, num_kv_heads=2)
    assert broken(case(model, "tp=4")) == set()
    assert broken(case(model, "cp=4:ulysses")) == set()
    assert broken(case(model, "tp=8 cp=4:ulysses")) == set()


def test_kinds_that_balance_the_causal_mask_need_two_chunks_for_each_rank():
    """8 ranks and 8,200 tokens: 1,025 for each, which two chunks cannot share; a plain ring and ulysses can."""
    kinds = {"zigzag": 1, "allgather": 1, "usp=2x4": 1, "usp=8x1": 0, "ring": 0, "striped": 0, "ulysses": 0}
    for kind, refused in kinds.items():
        assert broken(case(LLAMA_70B, f"cp=8:{kind}", seq=8200)) == ({"cp-sequence"} if refused else set()), kind


def test_latent_attention_has_a_kv_head_for_every_query_head():
    """MLA projects the shared latent to 128 heads: ulysses cuts those, however few kv heads a config states."""
    stated = model_with(DEEPSEEK_V3, num_kv_heads=1)
    assert broken(case(stated, "tp=4 cp=32:ulysses")) == set()
    assert broken(case(stated, "tp=3", batch=512)) >= {"tp-heads", "tp-kv-heads"}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_are_refused_for_the_reasons_of_the_schedule_itself(schedule):
    """The generator of action lists and the rules agree on every p, v and m: one is not stricter than the other."""
    model = model_with(LLAMA_70B, layers=LLAMA_70B.layers[:1] * 720)
    v = 2 if schedule in (*TWO_CHUNK_SCHEDULES, "interleaved") else 1
    for p in (2, 3, 4, 5, 6):
        for m in range(1, 16):
            layout = Layout(pp=p, schedule=schedule, virtual_stages=v)
            assert (broken(case(model, layout, batch=m)) == set()) == (schedule_mistakes(schedule, p, v, m) == []), (p, m)


@pytest.mark.parametrize("order", ["-".join(order) for order in permutations(("tp", "cp", "ep", "dp", "pp"))])
def test_without_sp_the_etp_groups_are_the_tp_groups(order):
    """The rule's arithmetic against the groups themselves, on every order."""
    for tp, cp, dp_shard, ep in product((2, 4), (1, 2), (1, 2, 4), (1, 2, 4)):
        layout = Layout(tp=tp, cp=cp, dp_shard=dp_shard, dp_replicate=2, ep=ep, order=order)
        if layout.fold % (ep * tp) or not fold_is_regular(layout):
            continue
        mesh = Mesh(layout)
        same = all(sorted(mesh.group_of(rank, "tp")) == sorted(mesh.group_of(rank, "etp")) for rank in range(mesh.world_size))
        assert same != ("etp-order" in broken(case(QWEN_MOE, layout))), str(layout)
