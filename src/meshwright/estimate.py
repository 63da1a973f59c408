"""One layout's answer: step time and its parts, MFU, memory, whether it fits, what was assumed and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp, sqrt
from typing import Any

from meshwright.collectives.fabric import Fabric
from meshwright.collectives.rates import assumed_rates
from meshwright.ledger.build import build
from meshwright.memory import StageMemory, candidates, stage_memory
from meshwright.model_flops import flops_per_token
from meshwright.priced import Priced
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.stack import Stack
from meshwright.spec.workload import Precision, Training
from meshwright.step_time import Parts, step_with_parts
from meshwright.timeline.step import simulated_parts

MEMORY_FRACTION = 0.92
"""Part of the device that a plan may fill (DESIGN section 4.2)."""

DENSE_SPREAD, MOE_SPREAD = 0.08, 0.18
"""Standard deviation of the logarithm of measured over predicted steps, as far as they compute, for a site that nobody has calibrated."""

EXPOSED_SPREAD = 0.25
"""The same of what is exposed of communication, which is less sure. All three by the coverage of the runs of sources that were left out
of the fit (docs/validation.md)."""

RANGE = 1.645
"""Standard deviations on each side of a range that holds 90 % of a normal variable."""


@dataclass(frozen=True)
class Estimate:
    """What a step takes. Seconds, bytes; ``parts`` are exposed seconds that sum to ``step_s``."""

    layout: Layout
    step_s: float
    step_s_low: float
    step_s_high: float
    mfu: float
    mfu_convention: str
    tokens_per_s_per_gpu: float
    parts: dict[str, float]
    memory_bytes: int
    reserved_bytes: int
    fits: bool
    bubble_fraction: float
    assumed: list[str] = field(default_factory=list)
    warnings: list[Any] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The keys of DESIGN section 7."""
        found = dict(vars(self))
        found["layout"] = str(self.layout)
        found["warnings"] = [vars(warning) if not isinstance(warning, dict) else warning for warning in self.warnings]
        return found


def priced(model: Model, cluster: Cluster, workload: Training, layout: Layout, stack: Stack | None = None) -> Priced:
    """The ledger of a layout with its prices. Blocks and units are priced once for layouts that differ only in what chooses
    among them, as in a search (search/evaluate.py): the schedule, its stages and the recompute policy."""
    ledger = build(model, workload, layout, stack)
    alike = replace(layout, schedule="1f1b", virtual_stages=1, stages=None, recompute="none", recompute_layers=None)
    return Priced(ledger, cluster, *_shared(model, cluster, workload.seq, alike, ledger.stack, ledger.precision))


@lru_cache(maxsize=256)
def _shared(
    model: Model, cluster: Cluster, seq: int, layout: Layout, stack: Stack, precision: Precision
) -> tuple[Fabric, dict[object, Any], dict[object, Any]]:
    """What Priced keeps of the layouts that are like this one."""
    return Fabric(layout, cluster, model.attention.num_kv_heads), {}, {}


def device_peak(model: Model, cluster: Cluster, compute: str) -> float:
    """Peak that MFU divides by: of the products' dtype."""
    peak = cluster.device.peak(compute) or cluster.device.peak("float16")
    assert peak is not None
    return peak


def estimate(
    model: Model, cluster: Cluster, workload: Training, layout: Layout, stack: Stack | None = None,
    memory_fraction: float = MEMORY_FRACTION, mfu_convention: str = "causal", closed_form: bool = False,
) -> Estimate:  # fmt: skip
    """Price one legal layout (spec/rules/ checks it). Arguments as in ``estimate_of``."""
    numbers = priced(model, cluster, workload, layout, stack)
    return estimate_of(numbers, memory_fraction, mfu_convention, closed_form)


def estimate_of(
    numbers: Priced, memory_fraction: float = MEMORY_FRACTION, mfu_convention: str = "causal", closed_form: bool = False
) -> Estimate:
    """What a priced ledger says of its layout.

    Args:
        closed_form: take the step from the formula that orders a search (step_time.py) instead of the simulator: a fixed, short
            time per layout, within a hundredth of the simulator for equal stages; further off (mostly below a twentieth, at worst a fifth)
            where embedding, head or ZeRO's root make the end stages heavier.
    """
    ledger, cluster = numbers.ledger, numbers.cluster
    model, workload, layout, stack = ledger.model, ledger.workload, ledger.layout, ledger.stack
    if closed_form:
        seconds, parts, bubble = step_with_parts(numbers)
    else:
        parts, bubble = simulated_parts(numbers)
        seconds = parts.step_s
    seconds = float(seconds)
    memory = fullest(numbers)
    low, high = _range(seconds, parts, stack, model.moe is not None)
    tokens = workload.batch * workload.seq
    per_gpu = tokens / (seconds * layout.world_size)
    peak = device_peak(model, cluster, numbers.ledger.precision.compute)
    reserved = cluster.device.reserved_bytes
    return Estimate(
        layout=layout, step_s=seconds, step_s_low=low, step_s_high=high,
        mfu=per_gpu * flops_per_token(model, workload.seq, mfu_convention) / peak, mfu_convention=mfu_convention,
        tokens_per_s_per_gpu=per_gpu, parts={name: float(value) for name, value in parts.as_dict().items()},
        memory_bytes=int(memory.peak_bytes), reserved_bytes=reserved,
        fits=bool(fits(memory.peak_bytes, cluster, memory_fraction)), bubble_fraction=float(bubble),
        assumed=assumptions(numbers, stack),
    )  # fmt: skip


def fits(peak_bytes: Any, cluster: Cluster, memory_fraction: float = MEMORY_FRACTION) -> Any:
    """Whether allocator peak and reserve stay within the allowed part of the device."""
    return peak_bytes + cluster.device.reserved_bytes <= memory_fraction * cluster.device.memory_bytes


def fullest(numbers: Priced) -> StageMemory:
    """The stage with the highest peak."""
    stages = [stage_memory(numbers, index) for index in candidates(numbers)]
    return max(stages, key=lambda stage: float(stage.peak_bytes))


def _range(seconds: float, parts: Parts, stack: Stack, is_moe: bool) -> tuple[float, float]:
    """Ends of the range that holds nine of ten runs; narrower where the stack was calibrated."""
    spread = stack.spread
    if spread is None:
        exposed = float(parts.tp_s + parts.cp_s + parts.ep_s + parts.pp_s + parts.dp_s) / seconds
        spread = sqrt((MOE_SPREAD if is_moe else DENSE_SPREAD) ** 2 + (EXPOSED_SPREAD * exposed) ** 2)
    width = exp(RANGE * spread)
    return seconds / width, seconds * width


def assumptions(numbers: Priced, stack: Stack) -> list[str]:
    """What the user did not say and the figure depends on."""
    ledger = numbers.ledger
    found = [f"stack {stack.name}: {stack.source}", f"precision {ledger.precision.name}"]
    if ledger.model.moe is not None:
        found.append("routing is balanced over the experts")
    if stack.efficiency is None:
        found.append("constants of the time model are fitted to published runs of others (docs/validation.md); calibrate on your own")
    return found + assumed_rates(numbers.cluster.tiers, ledger.layout.world_size)
