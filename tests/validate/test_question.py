"""Rows as inputs of an estimate: models, clusters, layouts, stacks and figures, told by the row's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.spec.parameters import parameter_count
from meshwright.validate.cluster_of_run import inter_node_bytes_per_s
from meshwright.validate.judge import judge, questions_of
from meshwright.validate.question import Question, question_of
from meshwright.validate.runs import Run, Unjudgeable
from meshwright.validate.stages_of_run import stages_of

GPT_175B = {
    "id": "seqsel-t5-004", "source": "Korthikanti et al. 2022 (arXiv 2205.05198) Table 5", "year": "2022", "kind": "train",
    "model": "GPT 175B", "arch": "dense", "layers": "96", "hidden": "12288", "heads": "96", "kv_heads": "96", "head_dim": "128",
    "ffn": "49152", "vocab": "51200", "seq_len": "2048", "gpu": "A100-SXM4-80GB", "gpus": "64", "gpus_per_node": "8",
    "inter_link": "8x200Gb/s HDR InfiniBand per node", "tp": "8", "sp": "1", "cp": "1", "pp": "8", "vpp": "3",
    "schedule": "interleaved-1f1b", "dp": "1", "zero_stage_or_fsdp": "none", "micro_batch": "1", "global_batch": "64",
    "recompute": "selective", "precision": "fp16", "metric_name": "iteration time", "metric_value": "13.75", "metric_unit": "s",
    "step_time_s": "13.75", "step_time_basis": "stated",
}  # fmt: skip
"""A published row (Korthikanti et al., arXiv 2205.05198, table 5)."""

LLAMA_405B = {
    "id": "mbridge-135", "source": "NVIDIA Megatron-Bridge performance summary", "year": "2025", "kind": "train", "model": "Llama3.1-405B",
    "layers": "126", "hidden": "16384", "heads": "128", "kv_heads": "8", "head_dim": "128", "ffn": "53248", "vocab": "128256",
    "seq_len": "8192", "gpu": "H100-SXM", "gpus": "1024", "gpus_per_node": "8", "tp": "8", "cp": "2", "pp": "8", "vpp": "8",
    "schedule": "interleaved-1f1b", "dp": "8", "zero_stage_or_fsdp": "DDP + distributed optimizer (FSDP=0)", "micro_batch": "1",
    "global_batch": "512", "precision": "fp8", "metric_name": "throughput", "metric_value": "292.0", "metric_unit": "tokens/s/GPU",
    "step_time_s": "14.0274", "step_time_basis": "derived: global_batch*seq_len/(tokens/s/GPU*gpus)",
}  # fmt: skip


def asked(row: dict[str, str], **changes: str) -> Question:
    return question_of(Run({**row, **changes}))


def test_a_row_with_everything() -> None:
    question = asked(GPT_175B)
    assert str(question.layout) == "tp=8 sp vocab_pad=128 pp=8:interleaved*3 dp=1x1 mb=1 recompute=selective"
    assert parameter_count(question.model) == pytest.approx(175e9, rel=0.01)
    assert (question.stack.name, question.workload.precision, question.assumed, question.complete) == ("megatron-2021", "fp16", (), True)
    assert [tier.bandwidth_bytes_per_s for tier in question.cluster.tiers] == [300e9, 25e9, 25e9]
    (figure,) = question.figures
    assert (figure.metric, figure.value, figure.step_s) == ("step_s", 13.75, 13.75)


def test_what_a_row_leaves_out_is_said() -> None:
    question = asked(LLAMA_405B)
    assert question.model.name == "llama-3.1-405b" and question.stack.name == "megatron-bridge" and question.layout.zero == 1
    assert question.layout.stages == (1, *[2] * 62, 1)
    assert "sequence parallelism on" in question.assumed and "no recomputation" in question.assumed
    (found,) = judge(question)
    assert found.metric == "tokens_per_s_per_gpu"
    assert found.error == pytest.approx(14.0274 / found.step_s - 1, rel=1e-3)  # the printed throughput has four digits
    assert found.low < found.predicted < found.high


@pytest.mark.parametrize(
    ("row", "changes", "why"),
    [
        (GPT_175B, {"kind": "serve"}, "only training"),
        (GPT_175B, {"layers": "1e17"}, "more than any model"),
        (GPT_175B, {"inter_link": "8x0Gb/s per node"}, "no rate of a link"),
        (GPT_175B, {"inter_link": "9" * 400 + "GB/s"}, "no rate of a link"),
        (GPT_175B, {"step_time_s": "5e-324"}, "not a positive number"),
        (GPT_175B, {"gpu": "TPU v4"}, "not in the catalog"),
        (GPT_175B, {"gpus": "72"}, "are not 72 GPUs"),
        (GPT_175B, {"hidden": ""}, "hidden is not given"),
        (GPT_175B, {"schedule": "wave"}, "is not known"),
        (GPT_175B, {"metric_name": "forward+backward time of one layer"}, "single layer"),
        (GPT_175B, {"step_time_s": "", "metric_value": ""}, "no time"),
        (LLAMA_405B, {"model": "Llama3-70B LoRA"}, "LoRA"),
        (LLAMA_405B, {"precision": "nvfp4"}, "not modelled"),
        (LLAMA_405B, {"micro_batch": "3"}, "micro-batches"),
        (LLAMA_405B, {"global_batch": "4194304"}, "more than 1,000,000 sequences"),
    ],
)
def test_why_a_row_cannot_be_judged(row: dict[str, str], changes: dict[str, str], why: str) -> None:
    questions, skipped = questions_of([Run({**row, **changes})])
    assert not questions
    assert why in skipped[0].why
    with pytest.raises(Unjudgeable, match=why):
        asked(row, **changes)


def test_a_run_that_did_not_fit_is_asked_about_its_memory() -> None:
    question = asked(GPT_175B, metric_value="OOM", step_time_s="", step_time_basis="")
    assert question.out_of_memory and not question.figures and not question.complete


@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [("8x200Gb/s HDR InfiniBand per node", 8, 25e9), ("400Gb/s RDMA per GPU", 8, 50e9), ("100Gb/s InfiniBand per node", 8, 1.5625e9),
     ("RoCE RDMA", 8, None), ("4 x 25 GB/s per node", 4, 25e9)],
)  # fmt: skip
def test_bandwidth_between_nodes(text: str, nodes: int, expected: float | None) -> None:
    assert inter_node_bytes_per_s(text, nodes) == expected


@pytest.mark.parametrize(("layers", "chunks"), [(126, 32), (61, 8), (94, 24), (61, 16), (80, 32)])
def test_uneven_stages_hold_every_layer_and_are_lighter_at_the_ends(layers: int, chunks: int) -> None:
    stages = stages_of(layers, chunks)
    assert stages is not None and len(stages) == chunks
    assert sum(stages) == layers
    assert max(stages) - min(stages[1:-1]) <= 1 and stages[0] <= min(stages[1:-1])


@pytest.mark.parametrize(
    ("unit", "value", "convention"),
    [("TFLOP/s/GPU (hardware flops, incl. recompute)", "150", "hardware"), ("TFLOP/s/GPU (model flops, causal)", "120", "causal")],
)
def test_flops_without_a_step_time_are_counted_as_the_unit_says(unit: str, value: str, convention: str) -> None:
    question = asked(GPT_175B, metric_name="throughput", metric_value=value, metric_unit=unit, step_time_s="", step_time_basis="")
    (figure,) = question.figures
    assert (figure.metric, figure.convention, figure.step_s) == ("tflops_per_gpu", convention, None)
    (found,) = judge(question)
    # 6 N tokens and more, over 64 GPUs: between a quarter and all of an A100's 312 TFLOP/s.
    assert 80 < found.predicted < 312


def test_a_group_of_no_rank_is_no_group() -> None:
    assert asked(LLAMA_405B, zero_stage_or_fsdp="FSDP(0)").layout.dp_replicate == 1


def test_a_row_whose_model_is_no_file_says_which(tmp_path: Path) -> None:
    own = {"id": "a", "cluster": "h100-sxm", "layout": "dp=8", "seq": "8192", "batch": "64", "step_s": "1"}
    with pytest.raises(Unjudgeable, match=f"^{tmp_path} is a folder without"):
        question_of(Run({**own, "model": str(tmp_path)}))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({"metric2_name": "peak torch max_memory_allocated (max over ranks)"}, "allocated"), ({"metric2_name": "peak memory"}, "unsaid"),
     ({"metric2_name": "max reserved memory"}, "reserved"), ({"source": "pytorch/torchtitan", "year": "2024"}, "reserved"),
     ({"notes": "memory by nvidia-smi"}, "device")],
)  # fmt: skip
def test_which_memory_was_printed(changes: dict[str, str], kind: str) -> None:
    memory = asked(GPT_175B, peak_mem_value="61.5", peak_mem_unit="GiB", **changes).memory
    assert memory is not None and (memory.kind, memory.value) == (kind, 61.5 * 2**30)


def test_torchtitan_cuts_a_batch_into_as_many_as_stages() -> None:
    """Its default of 2024: 32 sequences of a replica in 8 stages are micro-batches of 4; of 2025: of one sequence."""
    titan = {**LLAMA_405B, "source": "pytorch/torchtitan", "micro_batch": "", "vpp": "", "schedule": "1f1b", "cp": ""}
    for year, mb in (("2024", 4), ("2025", 1)):
        assert asked(titan, year=year, dp="16", global_batch="512").layout.mb == mb
