"""Whole jobs that are often told: what must hold of them whatever the kernels' rates are."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.estimate import Estimate
from meshwright.explain.compare import Comparison
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model_summary import summarise
from tour.jobs import by_axis

FOUR_ON_512 = (
    "tp=16 sp pp=4 dp=8 zero=1 mb=1",
    "tp=8 sp pp=4 dp=16 zero=1 mb=1",
    "tp=8 sp pp=8:interleaved*2 dp=8 zero=1 mb=1",
    "dp=512 zero=3 mb=1 recompute=full",
)
LLAMA_64K = "tp=4 sp cp=4 pp=4 dp=8 zero=1 mb=1"
TRILLION = "tp=4 sp pp=8 stages=8,8,8,8,8,7,7,7 ep=32 etp=1 dp=32 zero=1 mb=1"


def estimated(model: str, cluster: str, layout: str, seq: int, batch: int, **more: str) -> Estimate:
    return mw.estimate(model, cluster=cluster, layout=layout, seq=seq, batch=batch, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def on_512() -> Comparison:
    return mw.compare("llama-3.1-70b", FOUR_ON_512, cluster="h100-sxm", seq=8192, batch=512)


def test_tp_across_nodes_loses(on_512: Comparison) -> None:
    """tp=16 leaves the node: the same messages, over links a ninth as fast, and twice as many micro-batches each."""
    across, inside = on_512.estimates[:2]
    assert across.parts["tp_s"] > 2 * inside.parts["tp_s"]
    assert across.step_s > inside.step_s
    assert {warning.code for warning in across.warnings} >= {"tp-across-nodes", "kv-copies"}
    assert inside.warnings == []


def test_bubbles_of_the_four(on_512: Comparison) -> None:
    """m = 64, 32, 64: at least (p-1)/(v m + p-1) of equal stages; embedding and head on the ends, and messages, make it more."""
    for estimate, bubble in zip(on_512.estimates, (3 / 67, 3 / 35, 7 / 135, 0), strict=True):
        assert bubble <= estimate.bubble_fraction <= bubble + 0.07


def test_fully_sharded_alone_waits_least_for_the_network(on_512: Comparison) -> None:
    """512 sequences on 512 ranks is one micro-batch each: 3 P once, behind the layers' compute."""
    alone = on_512.estimates[3]
    exposed = [e.step_s - e.parts["compute_s"] - e.parts["recompute_s"] for e in on_512.estimates]
    assert alone.fits
    assert exposed[3] == min(exposed)


def test_fully_sharded_alone_needs_recompute() -> None:
    """The whole sequence of every layer is on one rank: 0.18 TB."""
    plain = estimated("llama-3.1-70b", "h100-sxm", "dp=512 zero=3 mb=1", 8192, 512)
    assert not plain.fits
    assert plain.memory_bytes > 0.18e12


def test_175b_on_h800() -> None:
    """64 nodes of 8: tp=16 spans two nodes, tp=8 stays in one and has twice the stages."""
    across, inside = (estimated("gpt3-175b", "h800-sxm", layout, 2048, 1536) for layout in (
        "tp=16 sp pp=4 dp=8 zero=1 mb=1", "tp=8 sp pp=8 dp=8 zero=1 mb=1"))  # fmt: skip
    assert across.fits and inside.fits
    assert across.step_s > inside.step_s
    assert across.parts["tp_s"] > across.parts["compute_s"] * 0.5
    assert inside.bubble_fraction >= 7 / (192 + 7)


def test_175b_all_reduce_across_nodes_against_the_gemm() -> None:
    """b s h = 2,048 x 12,288 in bf16 are 50.3 MB; at tp=16 a rank's share of the MLP's down projection is 2 x 2,048 x 12,288 x 3,072
    flops. At the peak of one adapter and of the device the message takes longer: 15/8 x 50.3 MB / 50 GB/s > 0.155 Tflop / 989 T."""
    rows = mw.explain("gpt3-175b", cluster="h800-sxm", layout="tp=16 pp=4 dp=8 mb=1", seq=2048, batch=1536, layer=0, phase="forward").rows
    gemm, message = (next(row for row in rows if row.name == "mlp.down" and bool(row.op) == sent) for sent in (False, True))
    assert message.payload_bytes == 2048 * 12_288 * 2
    assert message.tier == "leaf"
    assert gemm.flops == 2 * 2048 * 12_288 * 3072
    least_s, gemm_least_s = 15 / 8 * message.payload_bytes / 50e9, gemm.flops / 989e12
    assert least_s > 10 * gemm_least_s
    # The program's own prices keep to these bounds; a rail per GPU lets a ring use eight links of a node at once.
    assert message.each_s > least_s / 8
    assert gemm.each_s > gemm_least_s


@pytest.mark.parametrize(
    ("model", "cluster", "layout", "seq", "batch", "world", "m"),
    [
        ("llama-3.1-70b", "h100-sxm", "tp=8 sp pp=4 dp=32 zero=1 mb=1", 8192, 1024, 1024, 32),
        ("llama-3.1-8b", "a100-sxm-80g", "dp=64 zero=2 mb=1", 8192, 512, 64, 8),
        ("llama-3.1-70b", "h800-sxm", "tp=8 sp pp=4 dp=8 zero=1 mb=1", 8192, 256, 256, 32),
        ("llama-3.1-70b", "h800-sxm", f"{LLAMA_64K} recompute=full", 65_536, 256, 512, 32),
        ("kimi-k2", "h100-sxm", TRILLION, 4096, 4096, 1024, 128),
    ],
)
def test_jobs_that_fit(model: str, cluster: str, layout: str, seq: int, batch: int, world: int, m: int) -> None:
    """They are legal, fit, compute faster than no device can, and their parts sum to the step."""
    found = estimated(model, cluster, layout, seq, batch)
    assert found.layout.world_size == world
    assert found.layout.micro_batches(batch) == m
    assert found.fits
    assert 0 < found.mfu < 1
    assert sum(found.parts.values()) == pytest.approx(found.step_s, rel=1e-12)  # sums of floats
    assert found.step_s_low < found.step_s < found.step_s_high


def test_8b_with_zero_2_on_64() -> None:
    """ZeRO-2 keeps 2 P of weights whole and (2 + 12)/64 P of the rest. With 8 micro-batches its gradients are scattered 8 times."""
    report = mw.memory("llama-3.1-8b", cluster="a100-sxm-80g", layout="dp=64 zero=2 mb=1", seq=8192, batch=512)
    parameters = summarise(resolve_model("llama-3.1-8b")).parameters
    held = report.fullest.categories
    assert held["weights"] == 2 * parameters
    # 128,256 rows of embedding and head are divisible by 64, and so is every other dim 0.
    assert held["gradients"] + held["optimizer"] == 14 * parameters / 64
    line = mw.explain("llama-3.1-8b", cluster="a100-sxm-80g", layout="dp=64 zero=2 mb=1", seq=8192, batch=512, by="axis").line("dp")
    assert line.collectives == {"reduce_scatter": 8 * 33, "all_gather": 33}


def test_70b_at_64k_needs_recompute_on_80_gb() -> None:
    """tp=4 cp=4: a rank keeps a sixteenth of 65,536 tokens for each of 20 layers, four micro-batches of them on the first stage."""
    kept = estimated("llama-3.1-70b", "h800-sxm", LLAMA_64K, 65_536, 256)
    freed = estimated("llama-3.1-70b", "h800-sxm", f"{LLAMA_64K} recompute=full", 65_536, 256)
    assert not kept.fits and freed.fits
    assert freed.parts["recompute_s"] > 0 == kept.parts["recompute_s"]


def test_mt_nlg_on_4480() -> None:
    """530B as tp=8 pp=35 dp=16 at sequence 2,048 (arXiv 2201.11990, section 3.2; batch 1,920): m = 120, bubble 34/154 of equal stages."""
    found = estimated(
        "mt-nlg-530b", "a100-sxm-80g", "tp=8 pp=35 dp=16 mb=1 recompute=full", 2048, 1920, stack="megatron-2021", precision="fp16"
    )
    assert found.layout.world_size == 4480
    assert found.layout.micro_batches(1920) == 120
    assert found.fits
    assert 34 / 154 <= found.bubble_fraction < 34 / 154 + 0.05


def test_mt_nlg_refuses_longer_sequences() -> None:
    """Its positions are learned for 2,048 tokens."""
    with pytest.raises(InputError, match=r"2,?048"):
        estimated("mt-nlg-530b", "a100-sxm-80g", "tp=8 pp=35 dp=16 mb=1", 4096, 1920)


def test_experts_of_a_trillion_parameters() -> None:
    """Kimi-K2 on 1,024: 384 experts over 32 ranks are 12 on each; every token's 8 copies go there and back in each of a stage's layers,
    forward and backward."""
    model = resolve_model("kimi-k2")
    assert summarise(model).parameters > 1e12
    line = by_axis(model, TRILLION, 4096, seq=4096).line("ep")
    assert line.degree == 32
    assert line.tier != "nvlink"
    copies_bytes = 4096 // 4 * model.moe.top_k * model.hidden_size * 2
    # Besides, counts of tokens before each dispatch and loads of experts: integers of 384 experts.
    assert line.payload_bytes == pytest.approx(4 * 128 * 8 * copies_bytes, rel=1e-4)


def test_70b_on_64_h100() -> None:
    """One GPU holds a fourteenth of 16 bytes x 70.55e9; the best of a small space fits, and tp stays inside a node."""
    answer = mw.plan("llama-3.1-70b", cluster="h100-sxm", gpus=64, seq=8192, batch=512, constraints=["cp=1", "recompute=none"])
    best = answer.plans[0].estimate
    assert "16 bytes x 70.6B parameters" in answer.decisions[0].reason
    assert best.fits
    assert best.layout.world_size == 64
    assert best.layout.tp <= 8
    assert best.step_s == min(plan.estimate.step_s for plan in answer.plans)
    assert best.step_s == pytest.approx(
        estimated("llama-3.1-70b", "h100-sxm", str(best.layout), 8192, 512).step_s, rel=1e-12
    )  # the same code: a plan's figure is estimate's


def test_ranks_of_the_64_gpu_plan_partition_the_job() -> None:
    """tp=8 dp=2 pp=4 on 64 ranks: strides 1, 8 and 16."""
    report = mw.ranks("llama-3.1-70b", cluster="h100-sxm", layout="tp=8 sp dp=2 pp=4 mb=1")
    strides = {axis.axis: axis.legs[0].stride for axis in report.axes}
    assert [strides[axis] for axis in ("tp", "dp_shard", "pp")] == [1, 8, 16]
    for axis in report.axes:
        assert sorted(rank for group in axis.groups for rank in group) == list(range(64))
