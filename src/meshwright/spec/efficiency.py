"""The constants of the time model that are fitted to measured runs: each with its meaning, and what was known of it before the fit.

There are few, they are global, and none belongs to a model or a run. ``catalog/efficiency.toml`` holds the fitted values,
benchmarks/fit_efficiency.py makes them; ``meshwright calibrate`` fits them again to a user's own runs, with these as priors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple

from meshwright.catalog import ROOT as CATALOG
from meshwright.spec.files import read_toml

__all__ = ["CONSTANTS", "Constant", "Efficiency", "fitted", "prior"]


class Constant(NamedTuple):
    """What is known before the fit.

    Attributes:
        prior: its value there. spread: of its logarithm, one standard deviation; 0 for what is not fitted.
        meaning: what it scales. source: where the prior comes from.
    """

    prior: float
    spread: float
    meaning: str
    source: str


TABLES = "NVIDIA aiconfigurator data, 2025 (GEMM and attention tables of TensorRT-LLM and vLLM)"
SUSTAINED = (
    "kernel tables of NVIDIA aiconfigurator, 2025, less the clocks that training sustains: SimuMax's lists of 2025 (B200 0.49, A100 0.82)"
)

CONSTANTS: dict[str, Constant] = {
    "matmul_volta": Constant(0.70, 0.10, "16-bit products, share of peak at large shapes: V100", "NVIDIA, Volta tuning guide: 0.7 to 0.8"),
    "matmul_ampere": Constant(0.86, 0.07, "16-bit products, share of peak at large shapes: A100", SUSTAINED),
    "matmul_hopper": Constant(0.76, 0.07, "16-bit products, share of peak at large shapes: H100, H200, H800", SUSTAINED),
    "matmul_blackwell": Constant(0.50, 0.05, "16-bit products, share of peak at large shapes: B200, GB200, B300, GB300", SUSTAINED),
    "matmul_ada": Constant(0.70, 0.0, "16-bit products, share of peak at large shapes: L40S", TABLES),
    "matmul_cdna3": Constant(
        0.45,
        0.0,
        "16-bit products, share of peak at large shapes: MI300X",
        "best found 0.51 (S. Bekman, Machine Learning Engineering, 2025), less the loss under load",
    ),
    "matmul_cdna4": Constant(
        0.55, 0.0, "16-bit products, share of peak at large shapes: MI355X", "best found 0.68 (same chapter), less the loss under load"
    ),
    "fp8_hopper": Constant(
        0.54, 0.15, "8-bit products of 8,192 columns and depth, share of peak: Hopper", f"0.63 in {TABLES}, less the same loss"
    ),
    "fp8_blackwell": Constant(
        0.46, 0.15, "8-bit products of 8,192 columns and depth, share of peak: Blackwell", f"0.59 in {TABLES}, less the same loss"
    ),
    "power": Constant(
        0.67,
        0.20,
        "exponent of a board's power limit per unit of peak, over its generation's first board",
        "dynamic power is as voltage squared times clock: 1/3 to 1",
    ),
    "half_m": Constant(64.0, 0.4, "rows at which a product reaches half of its rate", TABLES),
    "half_n": Constant(64.0, 0.5, "columns at which a product reaches half of its rate", TABLES),
    "half_k": Constant(120.0, 0.4, "depth at which a product reaches half of its rate", TABLES),
    "fp8_half_n": Constant(2500.0, 0.5, "columns at which an 8-bit product reaches half of its rate", TABLES),
    "fp8_half_k": Constant(700.0, 0.5, "depth at which an 8-bit product reaches half of its rate", TABLES),
    "quantise": Constant(
        1.5,
        0.5,
        "memory passes over an 8-bit product's 16-bit operands: read, write, transposed copy",
        "Transformer Engine: cast and transpose",
    ),
    "grouped": Constant(
        0.75,
        0.2,
        "grouped products over plain ones of a group's shape",
        "DeepGEMM's tables of 2025: 0.6 to 0.9; SimuMax, configs/system/a100_pcie.json: 0.63 to 0.71 of peak",
    ),
    "flash_1": Constant(
        0.40,
        0.2,
        "flash attention of 2022 (Triton, CUTLASS), forward, share of an A100's peak at long sequences",
        "Dao, arXiv 2307.08691, figures 4 to 6",
    ),
    "flash_2": Constant(
        0.62,
        0.12,
        "flash attention 2, forward, share of an A100's peak at long sequences",
        "Dao, arXiv 2307.08691, figure 5: 0.60 to 0.70 of A100",
    ),
    "flash_2_hopper": Constant(
        0.42, 0.15, "flash attention 2, share of an H100's peak", "Dao, arXiv 2307.08691: 335 TFLOP/s both ways, best"
    ),
    "flash_3_hopper": Constant(
        0.66, 0.12, "flash attention 3 and cuDNN's, share of an H100's peak", f"599 TFLOP/s at 8,192 tokens in {TABLES}"
    ),
    "flash_blackwell": Constant(
        0.62, 0.15, "cuDNN's attention, share of a Blackwell's peak", "SimuMax, configs/system/b200_bf16_ceperm.json: 0.71"
    ),
    "flash_backward": Constant(0.78, 0.12, "rate of the backward over the forward's", "Dao, arXiv 2307.08691, figures 5 and 6"),
    "half_head": Constant(
        20.0, 0.5, "head dim at which flash attention reaches half of its rate", "64 channels reach 0.84 of what 128 do (same tables, H100)"
    ),
    "half_seq": Constant(
        800.0,
        0.3,
        "keys at which flash attention reaches half of its rate",
        f"303, 423, 565, 599 TFLOP/s at 1 to 8 thousand tokens in {TABLES}",
    ),
    "scores": Constant(1.0, 0.25, "memory traffic of materialised scores over six passes of two bytes", "Dao et al., arXiv 2205.14135"),
    "memory": Constant(
        0.80, 0.10, "share of the memory's peak rate that elementwise kernels reach", "STREAM-like kernels: 0.85 to 0.92; reductions less"
    ),
    "unfused": Constant(
        2.5, 0.3, "traffic of eager elementwise chains over that of fused kernels", "RMSNorm as five passes, SwiGLU as two"
    ),
    "launch_s": Constant(4e-6, 0.4, "shortest kernel with its gap", "CUDA launch latency 2 to 4 us (NVIDIA, 2024)"),
    "host_layer_s": Constant(
        5e-3,
        0.3,
        "least time of a dense layer's forward and backward: the host launches its kernels one by one",
        "dozens of kernels of some 10 us of host time each, in eager frameworks",
    ),
    "host_moe_s": Constant(8e-3, 0.3, "least time of a MoE layer's forward and backward", "twice as many kernels"),
    "host_s": Constant(
        2e-4,
        0.8,
        "host synchronisation of a MoE layer and pass, for the sizes of its dispatch",
        "9 to 17 ms a layer and micro-batch at worst, in runs without CUDA graphs",
    ),
    "permute": Constant(1.0, 0.4, "traffic of sorting token copies over one read and one write", "by its definition"),
    "tp": Constant(
        1.15,
        0.2,
        "tensor-parallel collectives over nccl-tests of the same size",
        "Galvatron's profile of 2024: kernels beside each other 1.13 times as long",
    ),
    "async_tp": Constant(
        0.40,
        0.4,
        "what stays exposed of tensor-parallel collectives under asynchronous tp",
        "PyTorch, async TP, 2024: up to 0.29 less step time at tp=8",
    ),
    "dp_inside": Constant(1.15, 0.2, "data-parallel collectives inside the node over nccl-tests", "as tp"),
    "dp_across": Constant(1.3, 0.3, "data-parallel collectives across nodes over nccl-tests", "as tp; fabrics below their line rate"),
    "contention": Constant(
        0.13,
        0.5,
        "what a hidden data-parallel collective adds to the compute that hides it, share of its time",
        "Galvatron's profile of 2024: 1.126",
    ),
    "ep": Constant(1.3, 0.3, "dispatch and combine over nccl-tests", "as tp; uneven messages"),
    "cp": Constant(1.2, 0.3, "context-parallel exchanges over nccl-tests", "as tp"),
    "pp": Constant(1.5, 0.4, "pipeline messages over nccl-tests", "zero-bubble's profile, arXiv 2401.10241 table 5: 47 GB/s inside a node"),
    "optimizer": Constant(
        1.3, 0.3, "traffic of the optimizer step over one fused pass", "gradient norm and clipping read the gradients again"
    ),
}
"""Every fitted constant by name. What has no spread has no run to be fitted to."""


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The constants' values; CONSTANTS says what each means. ``level`` scales every step: a site's or a release's own."""

    matmul_volta: float
    matmul_ampere: float
    matmul_hopper: float
    matmul_blackwell: float
    matmul_ada: float
    matmul_cdna3: float
    matmul_cdna4: float
    fp8_hopper: float
    fp8_blackwell: float
    power: float
    half_m: float
    half_n: float
    half_k: float
    fp8_half_n: float
    fp8_half_k: float
    quantise: float
    grouped: float
    flash_1: float
    flash_2: float
    flash_2_hopper: float
    flash_3_hopper: float
    flash_blackwell: float
    flash_backward: float
    half_head: float
    half_seq: float
    scores: float
    memory: float
    unfused: float
    launch_s: float
    host_layer_s: float
    host_moe_s: float
    host_s: float
    permute: float
    tp: float
    async_tp: float
    dp_inside: float
    dp_across: float
    contention: float
    ep: float
    cp: float
    pp: float
    optimizer: float


NAMES = tuple(field.name for field in fields(Efficiency))


def efficiency_of(values: Mapping[str, float]) -> Efficiency:
    """Values by name; what is left out has its prior."""
    return Efficiency(**{name: float(values.get(name, CONSTANTS[name].prior)) for name in NAMES})


@lru_cache(maxsize=1)
def prior() -> Efficiency:
    """What kernel tables alone say, before any run."""
    return efficiency_of({})


@lru_cache(maxsize=32)
def fitted(left_out: str = "") -> Efficiency:
    """The constants of the catalog; with ``left_out`` those that were fitted without that source's runs.

    Raises:
        KeyError: no such source.
    """
    tables = read_toml(CATALOG / "efficiency.toml")
    table = tables["left_out"][left_out] if left_out else tables["fitted"]  # type: ignore[index]
    return efficiency_of(table)  # type: ignore[arg-type]


def sources() -> Iterable[str]:
    """The sources that the catalog has constants without."""
    return tuple(read_toml(CATALOG / "efficiency.toml")["left_out"])  # type: ignore[arg-type]
