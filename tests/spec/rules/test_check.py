"""What the user reads: all mistakes together, with the values that would be legal; and warnings with a remedy."""

from dataclasses import replace

import pytest

from meshwright.errors import InputError
from meshwright.spec.layout import Layout, parse_layout
from meshwright.spec.rules import CAUTIONS, check, padded_vocab
from meshwright.spec.workload import Decode, Prefill, Training
from sample_inputs import DEEPSEEK_V3, GPT2_XL, H100_CLUSTER, LLAMA_70B, QWEN_MOE, SLOW_CLUSTER

STEP = Training(seq=8192, batch=512)


def mistakes(layout, model=LLAMA_70B, workload=STEP, **more):
    layout = parse_layout(layout) if isinstance(layout, str) else layout
    with pytest.raises(InputError) as caught:
        check(model, workload, layout, H100_CLUSTER, **more)
    return caught.value.mistakes


def warned(text, model=LLAMA_70B, workload=STEP, cluster=H100_CLUSTER):
    return {warning.code: warning for warning in check(model, workload, parse_layout(text), cluster)}


def test_all_mistakes_of_a_layout_are_told_together():
    found = mistakes("tp=5 sp pp=3 dp=7 cp=3")
    assert {mistake.key for mistake in found} == {"tp", "sp", "pp", "cp", "batch"}
    assert all(mistake.legal and mistake.problem for mistake in found)


def test_legal_values_are_computed_from_the_model():
    assert mistakes("tp=40")[0].legal == "1, 2, 4, 8, 16, 32 or 64"
    [mistake] = mistakes("pp=3")
    assert mistake.legal == "1, 2, 4, 5, 8, 10, 16, 20, 40 or 80"
    assert mistake.hint == "stages=26,27,27 splits the layers unevenly"
    assert mistakes("tp=3 dp=2x8", GPT2_XL, Training(seq=1024, batch=512))[0].legal == "1, 5 or 25"


def test_legal_values_stay_within_the_gpus():
    assert mistakes("tp=3 dp=1", gpus=3)[0].legal == "1 or 2"


def test_every_legal_value_that_is_named_is_accepted():
    for tp in (1, 2, 4, 8, 16, 32, 64):
        check(LLAMA_70B, STEP, Layout(tp=tp), H100_CLUSTER)
    for pp in (1, 2, 4, 5, 8, 10, 16, 20, 40, 80):
        check(LLAMA_70B, STEP, Layout(pp=pp), H100_CLUSTER)


def test_a_suggested_uneven_split_is_accepted():
    [mistake] = mistakes("pp=12")
    stages = mistake.hint.split()[0].removeprefix("stages=")
    check(LLAMA_70B, STEP, parse_layout(f"pp=12 stages={stages}"), H100_CLUSTER)


def test_no_legal_value_is_said_so():
    assert "no value of ep" in mistakes("tp=2 dp=3x1 ep=4 etp=4 sp", replace(QWEN_MOE), Training(seq=8192, batch=510))[0].legal


def test_a_message_names_flag_key_value_legal_values_and_hint():
    [mistake] = mistakes("dp=8 mb=3")
    assert str(mistake) == (
        "--batch: `batch` = 512 does not split into micro-batches of mb = 3 over dp = 8\n"
        "  legal: a multiple of 24 (dp 8 x mb 3)\n"
        "  hint: with this batch mb may be 1, 2, 4, 8, 16, 32 or 64"
    )


def test_mistakes_of_a_saved_plan_name_its_file():
    found = mistakes("dp=8 mb=3 tp=5", file="plan.toml")
    assert {mistake.file for mistake in found} == {"plan.toml"}


@pytest.mark.parametrize(
    ("layout", "key"),
    [
        (Layout(tp=0), "tp"),
        (Layout(dp_shard=-2), "dp_shard"),
        (Layout(pp=2.0), "pp"),
        (Layout(mb=True), "mb"),
        (Layout(mb=10**8 + 1), "mb"),
        (Layout(dp_shard=10**7, dp_replicate=10**7), "gpus"),
        (Layout(cp=4, cp_kind="spiral"), "cp_kind"),
        (Layout(pp=2, schedule="2f2b"), "schedule"),
        (Layout(pp=2, schedule="interleaved"), "virtual_stages"),
        (Layout(pp=2, virtual_stages=2), "virtual_stages"),
        (Layout(pp=2, schedule="zb-v"), "virtual_stages"),
        (Layout(cp=4, cp_kind="ulysses"), "ulysses"),
        (Layout(cp=4, cp_kind="usp", ulysses=3), "ulysses"),
        (Layout(cp=4, ulysses=2), "ulysses"),
        (Layout(zero=4), "zero"),
        (Layout(zero=2, zero_variant="keep"), "zero"),
        (Layout(recompute="some"), "recompute"),
        (Layout(recompute="selective", recompute_layers=2), "recompute"),
        (Layout(recompute="full", recompute_layers=0), "recompute"),
        (Layout(stages=()), "stages"),
        (Layout(pp=2, stages=(40, -40)), "stages"),
        (Layout(order="tp-pp"), "order"),
        (Layout(sp=1, tp=2), "sp"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value).replace(" ", "-")[:40],
)
def test_a_malformed_layout_is_refused_before_the_rules_divide_by_it(layout, key):
    assert [mistake.key for mistake in mistakes(layout)] == [key]


def test_sizes_of_model_and_workload_are_bounded():
    assert [m.key for m in mistakes("dp=1", workload=Training(seq=-1, batch=10**9))] == ["seq", "batch"]
    assert [m.key for m in mistakes("dp=1", workload=Training(seq=1, batch=1, precision="bf17"))] == ["precision"]
    assert [m.key for m in mistakes("dp=1", replace(LLAMA_70B, hidden_size=0, vocab_size=10**9))] == ["vocab_size", "hidden_size"]
    too_deep = replace(LLAMA_70B, layers=LLAMA_70B.layers[:1] * (10**5 + 1))
    assert [m.key for m in mistakes("dp=1", too_deep)] == ["num_layers"]
    assert [m.key for m in mistakes("dp=1", gpus=0)] == ["gpus"]


@pytest.mark.parametrize("workload", [Prefill(seq=8192, batch=8), Decode(seq=8191, batch=8)])
def test_serving_is_checked_too(workload):
    check(LLAMA_70B, workload, parse_layout("tp=8 sp dp=8"), H100_CLUSTER)
    assert [m.key for m in mistakes("tp=7 dp=8", workload=workload)] == ["tp", "tp", "tp"][: len(mistakes("tp=7 dp=8", workload=workload))]


PAIRS = {
    # code: (arguments that are warned about, arguments that are not)
    "tp-across-nodes": ({"text": "tp=16 sp"}, {"text": "tp=8 sp dp=2"}),
    "ep-across-nodes": ({"text": "dp=16 ep=16", "model": QWEN_MOE}, {"text": "dp=16 ep=8", "model": QWEN_MOE}),
    "ulysses-across-nodes": ({"text": "tp=4 sp cp=4:ulysses"}, {"text": "tp=4 sp cp=4:usp=2x2"}),
    "few-micro-batches": ({"text": "pp=16 dp=16"}, {"text": "pp=4 dp=16"}),
    "naive-schedule": ({"text": "pp=4:naive"}, {"text": "pp=4:gpipe"}),
    "sp-off": ({"text": "tp=8"}, {"text": "tp=8 sp"}),
    "interleaved-slow-fabric": (
        {"text": "tp=8 sp pp=4:interleaved*2", "cluster": SLOW_CLUSTER},
        {"text": "tp=8 sp pp=4:interleaved*2"},
    ),
    "zero3-gathers": ({"text": "dp=8 zero=3"}, {"text": "dp=8 zero=3:keep"}),
    "zero2-pp": ({"text": "pp=4 dp=8 zero=2"}, {"text": "pp=4 dp=8 zero=1"}),
    "zero-alone": ({"text": "dp=8x1 zero=1"}, {"text": "dp=1x8 zero=1"}),
    "kv-copies": ({"text": "tp=16 sp"}, {"text": "tp=8 sp"}),
    "cp-uneven": ({"text": "cp=4:ring"}, {"text": "cp=4"}),
    "seq-beyond-positions": (
        {"text": "dp=8", "model": QWEN_MOE, "workload": Training(seq=65_536, batch=8)},
        {"text": "dp=8", "model": QWEN_MOE, "workload": Training(seq=32_768, batch=8)},
    ),
    "vocab-padding": (
        {"text": "vocab_pad=60000", "model": GPT2_XL, "workload": Training(seq=1024, batch=8)},
        {"text": "vocab_pad=128", "model": GPT2_XL, "workload": Training(seq=1024, batch=8)},
    ),
    "vocab-off": ({"text": "tp=8 sp vocab=off"}, {"text": "tp=8 sp"}),
    "thin-micro-batch": (
        {"text": "dp=8", "workload": Training(seq=256, batch=8)},
        {"text": "dp=8", "workload": Training(seq=512, batch=8)},
    ),
    "partial-node": ({"text": "dp=12", "workload": Training(seq=8192, batch=48)}, {"text": "dp=16"}),
}  # fmt: skip


def test_every_caution_gives_its_reason():
    assert all(caution.applies.__doc__ for caution in CAUTIONS)


def test_every_caution_has_a_pair_here():
    assert set(PAIRS) == {caution.code for caution in CAUTIONS}
    assert len({caution.code for caution in CAUTIONS}) == len(CAUTIONS)


@pytest.mark.parametrize("code", PAIRS)
def test_a_silly_layout_is_warned_about_and_its_neighbour_is_not(code):
    silly, sensible = PAIRS[code]
    found = warned(**silly)
    assert code in found
    assert found[code].message and found[code].remedy
    assert set(found[code].as_json()) == {"code", "message", "remedy"}
    assert code not in warned(**sensible)


def test_a_sensible_layout_has_no_warnings():
    assert warned("tp=8 sp pp=4 dp=1x16 zero=1 mb=1") == {}


def test_without_a_cluster_the_network_is_not_judged():
    codes = {warning.code for warning in check(LLAMA_70B, STEP, parse_layout("tp=16 sp"))}
    assert codes == {"kv-copies"}


def test_warnings_carry_the_numbers_that_decide():
    """p = 4: 1f1b idles 3/11 at m = 8; interleaved by 2 at m = 16 would idle 3/35 (Narayanan et al. 2021, section 2.2)."""
    assert "27%" in warned("pp=4 dp=64")["few-micro-batches"].message
    assert "3/35" not in warned("pp=8:interleaved*2 dp=32")["few-micro-batches"].message
    assert f"{7 / (2 * 16 + 7):.0%}" in warned("pp=8:interleaved*2 dp=32")["few-micro-batches"].message
    assert "50 GB/s instead of nvlink at 450 GB/s" in warned("tp=16 sp")["tp-across-nodes"].message
    assert "1.75 times" in warned("cp=4:ring")["cp-uneven"].message


def test_padding_of_the_vocabulary_is_megatrons():
    """50,257 rows at tp=8 with Megatron's 128 become 51,200, as its GPT-2 recipes print; 128,256 needs none at tp=8."""
    assert padded_vocab(GPT2_XL, Layout(tp=8, vocab_pad=128)) == 51_200
    assert padded_vocab(GPT2_XL, Layout(vocab_pad=128)) == 50_304
    assert padded_vocab(LLAMA_70B, Layout(tp=8)) == 128_256
    assert padded_vocab(GPT2_XL, Layout(tp=8, vocab=False)) == 50_257


def test_deepseek_v3s_own_layout_is_legal():
    """pp=16, ep=64 over 8 nodes, ZeRO-1, 2,048 GPUs (arXiv 2412.19437, section 3.2); 61 layers need uneven stages."""
    text = "pp=16:dualpipe dp=1x128 ep=64 zero=1 mb=1 stages=" + ",".join(["4"] * 13 + ["3"] * 3)
    found = warned(text, DEEPSEEK_V3, Training(seq=4096, batch=15_360))
    assert set(found) == {"ep-across-nodes"}
