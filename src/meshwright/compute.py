"""Seconds of one compute row on a device: a roofline whose roofs are what kernels reach, not what data sheets print.

    matmul     max(flops / (peak x efficiency(shape)), bytes / memory bandwidth)
    attention  flops of the busiest rank / (peak x efficiency(sequence))
    memory     bytes / memory bandwidth

The efficiency of a product falls with short dims as m/(m+m0) n/(n+n0) k/(k+k0): prologue and epilogue of a tile, tiles
that do not fill the device. Asymptotes are what training runs sustain, which is below kernel benchmarks: clocks fall
under load. Fitting them is the business of ``calibrate``; the figures here are starting values with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.arithmetic import Num, larger
from meshwright.ledger.rows import Row
from meshwright.spec.cluster import Device
from meshwright.spec.stack import Stack


@dataclass(frozen=True, slots=True)
class Rates:
    """What the kernels of one device generation reach, as fractions of peak.

    Attributes:
        matmul: asymptote of large 16-bit products in training; fp8: of 8-bit ones.
        attention_forward, attention_backward: asymptotes of the flash kernel. memory: of the memory bandwidth.
    """

    matmul: float
    fp8: float
    attention_forward: float
    attention_backward: float
    memory: float = 0.85


RATES: dict[str, Rates] = {
    "volta": Rates(0.70, 0.0, 0.40, 0.35),
    "ampere": Rates(0.84, 0.0, 0.60, 0.52),
    "ada": Rates(0.70, 0.55, 0.55, 0.45),
    "hopper": Rates(0.72, 0.50, 0.62, 0.48),
    "blackwell": Rates(0.55, 0.40, 0.62, 0.48),
    "cdna3": Rates(0.45, 0.35, 0.35, 0.28),
    "cdna4": Rates(0.55, 0.42, 0.45, 0.36),
}
"""By Device.generation. matmul: sustained in training runs, A100 0.81, H100 0.69, B200 0.53 of peak at finite shapes; CDNA:
best found 0.51 and 0.68 (S. Bekman, Machine Learning Engineering, accelerator chapter, 2025) less the same loss. fp8: kernel
tables 0.65 of peak on Hopper, less that loss. attention: FlashAttention-3 at 8,192 tokens 0.61 forward on H100 and
FlashAttention-2 0.60 on A100 (NVIDIA aiconfigurator data, 2025; Dao, arXiv 2307.08691); backward 0.78 of the forward's rate."""

HALF_M, HALF_N, HALF_K = 64.0, 64.0, 110.0
"""Dims at which a 16-bit product loses half: read off H100 tables of narrow n and short k (NVIDIA aiconfigurator data,
2025: 8192 x 1024 reaches 0.91 of 8192 x 8192 at m = 4096)."""

FP8_HALF_N, FP8_HALF_K = 2500.0, 800.0
"""The same for 8-bit products, which need far larger ones (same tables: offsets of 2,000-3,700 and 600-1,000)."""

FP8_SCALE = (1.0 + FP8_HALF_N / 8192) * (1.0 + FP8_HALF_K / 8192)
"""Rates.fp8 is what a product of 8,192 columns and depth reaches, not an asymptote."""

HALF_SEQ = 800.0
"""Sequence at which flash attention reaches half of its asymptote: 303, 423, 565, 599 TFLOP/s at 1, 2, 4, 8 thousand tokens
(H100, 64 heads; same source)."""

KERNEL_FLOOR_S = 3e-6
"""Shortest time of a kernel with its launch gap (CUDA launch latency of 2-4 us, measured by many; NVIDIA, 2024)."""

UNFUSED_TRAFFIC = 2.5
"""Traffic of eager elementwise chains over that of one fused kernel: RMSNorm as five passes, SwiGLU as two."""

GROUPED_MATMUL = 0.8
"""Rate of grouped products over plain ones of the same shape (DeepGEMM's and SimuMax's tables: 0.6-0.9)."""


def rates(device: Device) -> Rates:
    """The rates of a device's generation; an unknown one counts as Hopper, which ``assumed`` then says."""
    return RATES.get(device.generation, RATES["hopper"])


class Kernels:
    """Prices the compute rows of one stack on one device; what does not depend on the row is looked up once.

    Args:
        dtype: of the matrix products (Precision.compute). Attention runs in 16 bit also where the products are 8 bit wide.

    Raises:
        ValueError: the device has no such unit.
    """

    def __init__(self, device: Device, stack: Stack, dtype: str) -> None:
        own = rates(device)
        self._fp8 = dtype == "fp8"
        self._flash = stack.attention_kernel != "none"
        self._moved_s_per_byte = 1.0 / (device.hbm_bandwidth_bytes_per_s * own.memory)
        self._elementwise = 1.0 if stack.fused_elementwise else UNFUSED_TRAFFIC
        half = _peak(device, "bf16")
        self._matmul = (half if self._fp8 else _peak(device, dtype)) * own.matmul
        self._matmul_fp8 = _peak(device, dtype) * own.fp8 * FP8_SCALE if self._fp8 else 0.0
        self._attention = {True: half * own.attention_backward, False: half * own.attention_forward}
        self._scores = half * own.matmul

    def seconds(self, row: Row) -> Num:
        """One call of a compute row."""
        moved = (row.read_bytes + row.write_bytes) * self._moved_s_per_byte
        if row.kind == "memory":
            return larger(moved * self._elementwise, KERNEL_FLOOR_S)
        computed = self._attention_s(row) if row.kind == "attention" else self._matmul_s(row)
        return larger(larger(computed, moved), KERNEL_FLOOR_S)

    def _matmul_s(self, row: Row) -> Num:
        assert row.shape is not None
        _, m, n, k = row.shape
        rate = self._matmul * (m / (m + HALF_M)) * (n / (n + HALF_N)) * (k / (k + HALF_K))
        if self._fp8:  # products that are too small for 8 bit (routers, narrow experts) stay in 16
            rate = larger(rate, self._matmul_fp8 * (n / (n + FP8_HALF_N)) * (k / (k + FP8_HALF_K)))
        if row.kind == "grouped_matmul":
            rate = rate * GROUPED_MATMUL
        return row.flops / rate

    def _attention_s(self, row: Row) -> Num:
        if not self._flash:
            return row.flops * row.imbalance / self._scores
        seq = row.seq
        return row.flops * row.imbalance / (self._attention[row.phase == "backward_input"] * (seq / (seq + HALF_SEQ)))


def _peak(device: Device, dtype: str) -> float:
    """Dense peak; V100 has no bf16 and runs it as fp16 would."""
    peak = device.peak(dtype) or (device.peak("float16") if dtype == "bf16" else None)
    if peak is None:
        raise ValueError(f"{device.name} has no {dtype} unit")
    return peak
