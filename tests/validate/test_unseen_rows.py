"""Rows of sources that nobody has seen: unusual words, missing columns, other GPUs. Each is judged soberly or listed with its reason."""

from __future__ import annotations

import math
import random

import pytest

from meshwright.model_flops import flops_per_token
from meshwright.validate.judge import fast_price, judge, questions_of
from meshwright.validate.question import Question, question_of
from meshwright.validate.runs import Run
from meshwright.validate.stages_of_run import cost_balanced_stages

LLAMA_70B = {
    "id": "new-001", "source": "A report", "year": "2024", "kind": "train", "model": "Llama-3-70B", "layers": "80", "hidden": "8192",
    "heads": "64", "kv_heads": "8", "head_dim": "128", "ffn": "28672", "vocab": "128256", "seq_len": "8192", "gpu": "H100-SXM",
    "gpus": "256", "gpus_per_node": "8", "tp": "8", "cp": "1", "pp": "4", "dp": "8", "micro_batch": "1", "global_batch": "512",
    "precision": "bf16", "metric_name": "throughput", "metric_value": "800", "metric_unit": "tokens/s/GPU", "step_time_s": "20.48",
}  # fmt: skip

WORDS: dict[str, tuple[str, ...]] = {
    "source": ("Megatron-LM README", "DeepSpeed ZeRO paper", "NeMo performance page", "pytorch/torchtitan", "huggingface/nanotron",
               "mosaicml llm-foundry", "Colossal-AI", "IBM fms-fsdp README", "MegaScale (NSDI24)", "InternEvo", "AMD Primus", "a blog", ""),
    "year": ("2020", "2021", "2022", "2023", "2024", "2025", "2026", ""),
    "gpu": ("A100 80GB SXM", "A100-SXM4-40GB", "A100 PCIe 80GB", "A800", "V100 32GB", "Tesla V100-SXM2-16GB", "H100 NVL", "H100 PCIe",
            "H100 SXM5 80GB HBM3", "H100 (96GB HBM2e, 500W limit)", "H800", "H200", "GH200", "B200", "B300", "GB200", "GB300", "L40S",
            "AMD MI300X", "MI325X", "MI355X", "Ampere", "MI250X", "TPU v5p", "RTX 4090", "Gaudi 2", ""),
    "gpu_mem_gb": ("", "16", "40", "80", "141"),
    "gpus_per_node": ("", "4", "8", "16"),
    "inter_link": ("", "8x200Gb/s HDR InfiniBand per node", "400 Gb/s per GPU", "800Gbps InfiniBand", "RoCE", "3200Gb/s per node", "NVL72"),
    "zero_stage_or_fsdp": ("", "none", "DDP", "ZeRO-1", "ZeRO-1 (distributed optimizer)", "ZeRO stage 2", "zero3", "ZeRO-3 (16)", "3",
                           "HSDP",
                           "FSDP2(8)", "FSDP FULL_SHARD", "HYBRID_SHARD", "SHARD_GRAD_OP", "ZeRO++",
                           "DDP + distributed optimizer (FSDP=0)"),
    "schedule": ("", "1f1b", "1F1B (non-interleaved)", "interleaved-1f1b", "VPP", "gpipe", "AFAB", "zero-bubble-1p", "ZB-H2", "zb-v",
                 "DualPipe",
                 "PipeDream-flush", "none", "chimera"),
    "vpp": ("", "1", "2", "5"),
    "recompute": ("", "none", "no", "full", "selective", "selective (core attention)", "full (10 layers)", "yes",
                  "activation checkpointing",
                  "block=4", "uniform", "True", "mlp, norm"),
    "precision": ("", "bf16", "BF16 mixed", "fp16", "fp8", "FP8-CS", "fp8 (mxfp8)", "fp32", "nvfp4", "mixed"),
    "sp": ("", "0", "1", "True", "no"),
    "micro_batch": ("", "1", "2", "1.0", "0", "many"),
    "global_batch": ("512", "1,024", "", "500"),
    "cp": ("", "1", "2"),
    "vocab": ("", "128256"),
    "heads": ("", "64"),
    "impl_notes": ("", "async TP", "no flash attention", "CUDA graphs", "cp all-gather", "overlap all off", "DeepEP"),
    "metric_unit": ("tokens/s/GPU", "TFLOP/s/GPU (model flops, causal)", "% of 989 TFLOP/s", "samples/s", ""),
    "peak_mem_value": ("", "61.5"),
    "peak_mem_unit": ("", "GB", "GiB", "GB per GPU"),
}  # fmt: skip
"""What cells of other sources say, or might."""


def test_no_words_break_a_row() -> None:
    """Cells drawn at random from what sources say: a row is priced, or refused with a reason, and nothing is raised."""
    generator = random.Random(5)
    judged = 0
    for number in range(400):
        changed = generator.sample(sorted(WORDS), generator.randint(1, 6))
        row = {**LLAMA_70B, "id": f"new-{number}", **{column: generator.choice(WORDS[column]) for column in changed}}
        row = {column: text for column, text in row.items() if text or generator.random() < 0.5}  # an empty cell or no such column
        questions, skipped = questions_of([Run(row)])
        assert len(questions) + len(skipped) == 1
        for one in skipped:
            assert len(one.why) > 10, row
        for question in questions:
            judged += 1
            for figure in judge(question, fast_price):
                assert 0 < figure.low < figure.predicted < figure.high < math.inf, row
            assert 0.01 < utilisation(question) < 0.85, row  # tp=8 over the PCIe of L40S: 0.04
    assert judged > 120


def utilisation(question: Question) -> float:
    """Model flops over the 16-bit peak, or the 8-bit one where the products are 8 bit wide."""
    found = fast_price(question)
    dtype = "fp8" if "fp8" in str(question.workload.precision) else "float16"
    peak = question.cluster.device.peak(dtype)
    assert peak is not None
    return found.tokens_per_s_per_gpu * flops_per_token(question.model, question.workload.seq) / peak


@pytest.mark.parametrize(
    ("changes", "stack", "layout"),
    [
        ({"source": "Narayanan et al. SC21", "year": "2021", "gpu": "A100 80GB", "precision": "fp16", "recompute": "full",
         "seq_len": "2048"},
         "megatron-2021", "recompute=full"),
        ({"source": "Smith et al., MT-NLG (DeepSpeed and Megatron)", "year": "2022", "gpu": "A100 80GB SXM", "seq_len": "2048"},
         "megatron-2021", "pp=4"),
        ({"source": "NVIDIA NeMo 24.07 performance", "year": "2024"}, "megatron-bridge", "zero=1"),
        ({"source": "Megatron-LM README", "year": "2024"}, "megatron", "tp=8 sp"),
        ({"source": "The Llama 3 Herd of Models (arXiv 2407.21783)", "year": "2024", "zero_stage_or_fsdp": "FSDP", "cp": "2", "dp": "4"},
         "megatron", "cp=2:allgather"),
        ({"source": "MegaScale (NSDI24)", "year": "2024", "gpu": "Ampere"}, "megatron-2023", "tp=8"),
        ({"source": "IBM fms-fsdp README", "year": "2024", "tp": "", "pp": "", "dp": "256", "zero_stage_or_fsdp": "HSDP",
         "micro_batch": "2"},
         "fsdp-2024", "dp=32x8 zero=3"),
        ({"source": "InternEvo", "year": "2023", "gpu": "A800", "pp": "", "dp": "32", "zero_stage_or_fsdp": "ZeRO-1(8)", "seq_len": "4096"},
         "megatron-2023", "dp=4x8 zero=1"),
        ({"source": "AMD Primus", "year": "2025", "gpu": "MI300X", "tp": "", "pp": "", "dp": "256", "zero_stage_or_fsdp": "FSDP"},
         "fsdp", "dp=1x256 zero=3"),
        ({"source": "DeepSpeed ZeRO", "year": "2023", "gpu": "V100 32GB", "tp": "", "pp": "", "dp": "256",
         "zero_stage_or_fsdp": "ZeRO stage 3",
          "seq_len": "2048", "precision": "fp16"}, "deepspeed", "dp=1x256 zero=3"),
        ({"source": "pytorch/torchtitan", "year": "2024", "zero_stage_or_fsdp": "FSDP2(8)", "micro_batch": ""}, "torchtitan", "mb=16"),
    ],
)  # fmt: skip
def test_sources_that_were_kept_aside(changes: dict[str, str], stack: str, layout: str) -> None:
    """The profile of the framework and year, the words for its layout, and a utilisation that such a job can have."""
    question = question_of(Run({**LLAMA_70B, **changes}))
    assert question.stack.name == stack
    assert layout in str(question.layout)
    assert 0.10 < utilisation(question) < 0.75


@pytest.mark.parametrize(
    ("gpu", "device", "power_w"),
    [("A100 80GB SXM", "a100-sxm-80g", 400), ("H100 NVL", "h100-pcie", 400), ("MI300X", "mi300x", 750), ("V100 32GB", "v100-sxm-32g", 300),
     ("H800", "h800-sxm", 700), ("L40S", "l40s", 350), ("A800", "a100-sxm-80g", 400), ("GH200", "h200-sxm", 700), ("GB200", "gb200", 1200),
     ("H100 (96GB HBM2e, 500W limit)", "h100-sxm", 500)],
)  # fmt: skip
def test_names_of_gpus(gpu: str, device: str, power_w: float) -> None:
    found = question_of(Run({**LLAMA_70B, "gpu": gpu, "gpus_per_node": ""})).cluster.device
    assert (found.name, found.power_w) == (device, power_w)


@pytest.mark.parametrize("gpu", ["TPU v5p", "MI250X", "Gaudi 2", "RTX 4090", "H20"])
def test_a_gpu_without_an_entry_is_listed(gpu: str) -> None:
    questions, (skipped,) = questions_of([Run({**LLAMA_70B, "gpu": gpu})])
    assert not questions and skipped.why == f"{gpu} is not in the catalog"


def test_nanotron_balances_the_head_against_layers() -> None:
    """16 layers and a head of 4 layers' products, two stages: the first passes its half with the eleventh layer (models/base.py)."""
    assert cost_balanced_stages(16, 4.0, 2) == (11, 5)
    assert cost_balanced_stages(32, 0.0, 4) == (9, 8, 8, 7)
    for layers, head, chunks in ((80, 1.1, 16), (80, 1.1, 32), (28, 3.2, 2), (48, 0.4, 6)):
        stages = cost_balanced_stages(layers, head, chunks)
        assert stages is not None and sum(stages) == layers and len(stages) == chunks
        assert max(stages[:-1]) - min(stages[:-1]) <= 1
