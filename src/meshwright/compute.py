"""Seconds of one compute row on a device: a roofline whose roofs are what kernels reach, not what data sheets print.

    matmul     max(flops / (peak x share x shape), bytes / memory rate); 8-bit ones also cast their operands
    attention  flops of the busiest rank / (peak x share x sequence), or the traffic of materialised scores
    memory     bytes / memory rate

The rate of a product falls with short dims as m/(m+m0) n/(n+n0) k/(k+k0): prologue and epilogue of a tile, tiles that do not
fill the device. It follows the board's power limit, since clocks fall under load. All constants are fitted
(spec/efficiency.py).
"""

from __future__ import annotations

from meshwright.arithmetic import Num, larger, largest, smaller
from meshwright.ledger.rows import Row
from meshwright.spec import names
from meshwright.spec.cluster import Device
from meshwright.spec.efficiency import Efficiency, fitted
from meshwright.spec.stack import Stack

REFERENCE_BOARD = {
    "volta": (300.0, 125e12), "ampere": (400.0, 312e12), "ada": (350.0, 362.05e12), "hopper": (700.0, 989e12),
    "blackwell": (1000.0, 2250e12), "cdna3": (750.0, 1307.4e12), "cdna4": (1400.0, 2516.6e12),
}  # fmt: skip
"""Power limit in watts and 16-bit peak of the board that a generation's shares are of (catalog/devices)."""

FP8_REFERENCE = 8192
"""Columns and depth of the product whose share of peak the fp8 constants are: kernel tables end there."""

REFERENCE_HEAD_DIM = 128
"""Head dim whose share of peak the flash constants are."""

GENERATIONS = ("volta", "ampere", "ada", "hopper", "blackwell", "cdna3", "cdna4")

UNKNOWN_GENERATION = "hopper"
"""What a device of an unknown generation counts as, which ``assumed`` then says."""


def generation_of(device: Device) -> str:
    """The generation whose constants price a device."""
    return device.generation if device.generation in GENERATIONS else UNKNOWN_GENERATION


def efficiency(stack: Stack) -> Efficiency:
    """The stack's own constants, or the catalog's."""
    return stack.efficiency or fitted()


def matmul_share(device: Device, constants: Efficiency) -> float:
    """Share of the 16-bit peak that large products sustain, at the device's power."""
    share: float = getattr(constants, f"matmul_{generation_of(device)}")
    return share * clock(device, constants)


def clock(device: Device, constants: Efficiency) -> float:
    """Share of the peak that a board sustains over what its generation's reference board does: its power limit per unit of peak, to a
    power. A peak that is higher by its clock alone needs the power to go with it."""
    generation = generation_of(device)
    watts, flops = REFERENCE_BOARD[generation]
    if device.power_w is None:
        return 1.0
    return float((device.power_w / watts / (_peak(device, "bf16") / flops)) ** constants.power)


def _fp8_share(device: Device, constants: Efficiency) -> float:
    return (constants.fp8_blackwell if generation_of(device) == "blackwell" else constants.fp8_hopper) * clock(device, constants)


def attention_share(device: Device, kernel: str, constants: Efficiency) -> float:
    """Share of the 16-bit peak that a flash kernel's forward reaches at long sequences; ``flash`` is the newest of the device."""
    generation = generation_of(device)
    at_power = clock(device, constants)
    if kernel == "flash-1":
        return (
            constants.flash_1 * (constants.flash_2_hopper / constants.flash_2 if generation in ("hopper", "blackwell") else 1.0) * at_power
        )
    if generation == "blackwell":
        return constants.flash_blackwell * at_power
    if generation == "hopper":
        return (constants.flash_2_hopper if kernel == "flash-2" else constants.flash_3_hopper) * at_power
    if generation.startswith("cdna"):  # Composable Kernel's: 0.35 and 0.45 of peak, of the products' 0.45 and 0.55
        return 0.8 * matmul_share(device, constants)
    return constants.flash_2 * at_power


class Kernels:
    """Prices the compute rows of one stack on one device; what does not depend on the row is looked up once.

    Args:
        dtype: of the matrix products (Precision.compute). Attention and the head run in 16 bit also where the products are 8 bit wide.

    Raises:
        ValueError: the device has no such unit.
    """

    def __init__(self, device: Device, stack: Stack, dtype: str) -> None:
        own = self._own = efficiency(stack)
        self._level = stack.level
        self._fp8 = dtype == "fp8"
        self._flash = stack.attention_kernel != "none"
        self._moved_s_per_byte = 1.0 / (device.hbm_bandwidth_bytes_per_s * own.memory)
        self._elementwise = 1.0 if stack.fused_elementwise else own.unfused
        half = _peak(device, "bf16")
        self._matmul = (half if self._fp8 else _peak(device, dtype)) * matmul_share(device, own)
        scale = (1.0 + own.fp8_half_n / FP8_REFERENCE) * (1.0 + own.fp8_half_k / FP8_REFERENCE)
        self._matmul_fp8 = _peak(device, dtype) * _fp8_share(device, own) * scale if self._fp8 else 0.0
        forward = half * attention_share(device, stack.attention_kernel, own) * (1.0 + own.half_head / REFERENCE_HEAD_DIM)
        self._attention = {True: forward * own.flash_backward, False: forward}
        self._scores = half * matmul_share(device, own)
        self._host_s = 0.0 if stack.static_routing else own.host_s

    def seconds(self, row: Row) -> Num:
        """One call of a compute row."""
        return self._seconds(row) if self._level == 1.0 else self._seconds(row) * self._level

    def _seconds(self, row: Row) -> Num:
        own = self._own
        moved = (row.read_bytes + row.write_bytes) * self._moved_s_per_byte
        if row.kind == "memory":
            if row.phase == "optimizer":
                return larger(moved * own.optimizer, own.launch_s)
            if row.name == names.DISPATCH:
                return moved * own.permute + self._host_s
            return larger(moved * self._elementwise, own.launch_s)
        if row.kind == "attention":
            if not self._flash:
                return larger(row.flops * row.imbalance / self._scores + moved * own.scores, own.launch_s)
            return largest(self._attention_s(row), moved, own.launch_s)
        return largest(self._matmul_s(row), moved, own.launch_s)

    def _matmul_s(self, row: Row) -> Num:
        assert row.shape is not None
        own = self._own
        _, m, n, k = row.shape
        rate = self._matmul * (m / (m + own.half_m)) * (n / (n + own.half_n)) * (k / (k + own.half_k))
        grouped = own.grouped if row.kind == "grouped_matmul" else 1.0
        seconds = row.flops / (rate * grouped)
        if not self._fp8 or row.name == names.HEAD:
            return seconds
        # Products that are too small for 8 bit (routers, narrow experts) stay in 16.
        fp8 = self._matmul_fp8 * (m / (m + own.half_m)) * (n / (n + own.fp8_half_n)) * (k / (k + own.fp8_half_k))
        cast_s = row.read_bytes * (own.quantise * self._moved_s_per_byte)
        return smaller(seconds, row.flops / (fp8 * grouped) + cast_s)

    def _attention_s(self, row: Row) -> Num:
        seq, head_dim = row.seq, row.head_dim
        rate = self._attention[row.phase == "backward_input"] * (seq / (seq + self._own.half_seq))
        return row.flops * row.imbalance / (rate * (head_dim / (head_dim + self._own.half_head)))


def _peak(device: Device, dtype: str) -> float:
    """Dense peak; V100 has no bf16 and runs it as fp16 would."""
    peak = device.peak(dtype) or (device.peak("float16") if dtype == "bf16" else None)
    if peak is None:
        raise ValueError(f"{device.name} has no {dtype} unit")
    return peak
