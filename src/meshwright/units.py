"""Parse and print quantities. GiB or GB, ms or s: it is decided here and nowhere else.

Memory prints in GiB (2^30), traffic and link speed in GB (10^9), as vendors and frameworks do.
"""

from __future__ import annotations

import math
import re

GIB = 1 << 30

DTYPE_BYTES: dict[str, float] = {
    "float64": 8,
    "float32": 4,
    "bf16": 2,
    "float16": 2,
    "fp8": 1,
    "fp4": 0.5,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "int4": 0.5,
    "bool": 1,
}
"""Bytes of one element. ``fp4`` covers mxfp4 and nvfp4 without their block scales."""

_BYTE_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def parse_bytes(text: str) -> int:
    """``"128MiB"`` -> 134217728. Raises ValueError on anything else."""
    return _parse(text, _BYTE_UNITS, default="b")


def parse_count(text: str) -> int:
    """``"15T"`` -> 15 * 10^12 (tokens, parameters). Raises ValueError on anything else."""
    return _parse(text, _COUNT_UNITS, default="")


def _parse(text: str, units: dict[str, int], default: str) -> int:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit")
    unit = match[2].lower() or default
    if unit not in units:
        raise ValueError(f"unknown unit {match[2]!r}; one of {', '.join(u for u in units if u)}")
    value = float(match[1]) * units[unit]
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is out of range")
    return round(value)


def format_memory(num_bytes: float) -> str:
    """Bytes of memory, in GiB (MiB or KiB or B where that is more readable)."""
    return _scaled(num_bytes, [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")])


def format_traffic(num_bytes: float) -> str:
    """Bytes that travel, in powers of ten."""
    return _scaled(num_bytes, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B")])


def format_seconds(seconds: float) -> str:
    """A duration with three digits and a fitting unit."""
    return _scaled(seconds, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def format_rate(bytes_per_s: float) -> str:
    """Link speed per direction and GPU, in GB/s."""
    return f"{bytes_per_s / 1e9:.4g} GB/s"


def format_count(count: float) -> str:
    """Parameters, tokens, flops: 70.6B, 15T."""
    return _scaled(count, [(1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")]).replace(" ", "")


def format_number_of(count: int, thing: str) -> str:
    """1 GPU, 16 GPUs: a whole number with what it counts, whose plural ends in s."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    if value == 0:
        return f"0 {steps[-1][1]}".strip()
    size, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    scaled = value / size
    digits = f"{scaled:.0f}" if scaled >= 999.5 or scaled == int(scaled) else f"{scaled:.3g}"
    return f"{digits} {unit}".strip()
