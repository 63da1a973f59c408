"""What a row measured: one figure of time, a stated one first, and the peak of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from meshwright.validate.runs import Run, Unjudgeable

Metric = Literal["step_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "memory_bytes"]

MemoryKind = Literal["allocated", "unsaid", "reserved", "device"]
"""allocated: the allocator's peak, said to be it. unsaid: taken for it. reserved: what it has taken from the device, with its cache and
fragments. device: what nvidia-smi shows, context and communication buffers included."""

UNITS: dict[str, float] = {"GiB": 2.0**30, "GB": 1e9, "MiB": 2.0**20, "MB": 1e6}


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        value: in the metric's unit; mfu as a fraction. step_s: the step time that the figure comes to, None where the source's
            flops convention has to be applied first, or for memory.
        convention: of a flops figure without a step time (model_flops.py).
        kind: of a memory figure, see MemoryKind.
    """

    metric: Metric
    value: float
    step_s: float | None = None
    convention: str = "full"
    kind: MemoryKind = "allocated"


def figures(run: Run) -> list[Figure]:
    """The time, if there is one, and the memory.

    Raises:
        Unjudgeable: neither is there.
    """
    found = [figure for figure in (_time(run), _memory(run)) if figure is not None]
    if not found and not ran_out_of_memory(run):
        raise Unjudgeable("no time, throughput, MFU or memory is given")
    return found


def _time(run: Run) -> Figure | None:
    if not run.published:
        return _own_time(run)
    step_s = run.number("step_time_s") if run.has("step_time_s") else None
    unit, name = run.text("metric_unit"), run.text("metric_name")
    if step_s is not None and (run.says("^stated", "step_time_basis") or not run.has("metric_value")):
        return Figure("step_s", step_s, step_s)
    if not run.has("metric_value") or not re.fullmatch(r"[0-9.]+", run.text("metric_value")):
        return Figure("step_s", step_s, step_s) if step_s is not None else None
    value = run.number("metric_value")
    if re.search(r"flop/s/gpu", unit, re.IGNORECASE):
        return Figure("tflops_per_gpu", value, step_s, _convention(unit))
    if "MFU" in name or re.search(r"^% of .*flop", unit, re.IGNORECASE):
        return Figure("mfu", value / 100, step_s, _convention(unit))
    if re.search(r"tokens/s/gpu", unit, re.IGNORECASE):
        return Figure("tokens_per_s_per_gpu", value, step_s or tokens(run) / (value * run.whole("gpus")))
    return Figure("step_s", step_s, step_s) if step_s is not None else None


def tokens(run: Run) -> int:
    """Tokens of a step."""
    return run.whole("global_batch") * run.whole("seq_len")


def _own_time(run: Run) -> Figure | None:
    if run.has("step_s"):
        return Figure("step_s", run.number("step_s"), run.number("step_s"))
    return Figure("tokens_per_s_per_gpu", run.number("tokens_per_s_per_gpu")) if run.has("tokens_per_s_per_gpu") else None


def _convention(unit: str) -> str:
    """The flops that the unit says it counts; "hardware" holds a recomputed forward."""
    if re.search(r"hardware|recompute", unit, re.IGNORECASE):
        return "hardware"
    return "causal" if re.search(r"causal", unit, re.IGNORECASE) else "full"


def _memory(run: Run) -> Figure | None:
    if not run.published:
        return Figure("memory_bytes", run.number("memory_gib") * 2**30) if run.has("memory_gib") else None
    if not run.has("peak_mem_value"):
        return None
    unit = run.text("peak_mem_unit") or "GiB"
    if unit not in UNITS:
        raise Unjudgeable(f"peak memory is in {unit}")
    return Figure("memory_bytes", run.number("peak_mem_value") * UNITS[unit], kind=_memory_kind(run))


def _memory_kind(run: Run) -> MemoryKind:
    """torchtitan logs max_reserved (components/metrics.py, 2024), BigScience nvidia-smi; a source may not say."""
    words = ("metric2_name", "metric3_name", "notes", "source")
    if run.says(r"nvidia-?smi", *words) or run.says(r"bigscience|bloom", "source"):
        return "device"
    if run.says(r"reserved", *words) or run.says("torchtitan", "source"):
        return "reserved"
    return "allocated" if run.says(r"alloc", *words, "metric_name") else "unsaid"


def ran_out_of_memory(run: Run) -> bool:
    """Whether the row says that the run did not fit."""
    return run.says(r"\boom\b|out of memory|did not fit", "metric_value", "metric_unit", "step_time_s")
