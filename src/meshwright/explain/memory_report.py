"""Memory by stage and category, what holds the peak in words, and whether it fits: the content of ``meshwright memory``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.estimate import MEMORY_FRACTION
from meshwright.explain.listing import StageListing
from meshwright.ledger.data_parallel import shard_ranks
from meshwright.memory import StageMemory, in_flight, stage_memory
from meshwright.priced import Priced
from meshwright.spec.layout import Layout
from meshwright.units import format_memory


@dataclass(frozen=True)
class StageReport:
    """One rank of a pipeline stage at its peak.

    Attributes:
        layers: model indices of its decoder layers. in_flight: chunk activations held at once (a micro-batch has one per chunk).
        categories: bytes by category (memory.py); they sum to ``peak_bytes``. held_by: what the peak consists of, in words.
    """

    stage: int
    layers: tuple[int, ...]
    in_flight: float
    categories: dict[str, int]
    peak_bytes: int
    held_by: str


@dataclass(frozen=True)
class MemoryReport:
    """All stages, and what the device leaves for them.

    Attributes:
        device_bytes: what the device has. reserved_bytes: context and communication buffers. allowed_bytes: what a peak may
            be, the fraction of the device less the reserve.
    """

    layout: Layout
    stages: tuple[StageReport, ...]
    device: str
    device_bytes: int
    reserved_bytes: int
    memory_fraction: float
    warnings: tuple[Any, ...] = ()

    @property
    def allowed_bytes(self) -> float:
        return self.memory_fraction * self.device_bytes - self.reserved_bytes

    @property
    def fullest(self) -> StageReport:
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def fits(self) -> bool:
        return self.fullest.peak_bytes <= self.allowed_bytes

    @property
    def verdict(self) -> str:
        """Whether the fullest stage fits and how far from the limit it is."""
        peak, allowed = self.fullest.peak_bytes, self.allowed_bytes
        limit = (
            f"{format_memory(allowed)}: {self.memory_fraction:.0%} of {self.device}'s {format_memory(self.device_bytes)}"
            f" less {format_memory(self.reserved_bytes)} for context and communication"
        )
        if self.fits:
            return f"fits: {format_memory(peak)} of {limit}; {format_memory(allowed - peak)} are free"
        return f"does not fit: {format_memory(peak)} are {format_memory(peak - allowed)} more than {limit}"

    def as_json(self) -> dict[str, object]:
        """The keys of DESIGN section 7."""
        keys = ("stage", "categories", "peak_bytes", "held_by")
        return {"stages": [{key: getattr(stage, key) for key in keys} for stage in self.stages]}


def report_memory(numbers: Priced, memory_fraction: float = MEMORY_FRACTION, warnings: Sequence[Any] = ()) -> MemoryReport:
    """The peak of every stage."""
    device = numbers.cluster.device
    stages = tuple(_stage(numbers, index) for index in range(numbers.ledger.layout.pp))
    return MemoryReport(
        numbers.ledger.layout, stages, device.name, device.memory_bytes, device.reserved_bytes, memory_fraction, tuple(warnings),
    )  # fmt: skip


def _stage(numbers: Priced, index: int) -> StageReport:
    memory = stage_memory(numbers, index)
    listing = StageListing(numbers.ledger, index)
    layers = tuple(sorted(layer for _, layers in listing.layers for layer in layers))
    layout = numbers.ledger.layout
    held = float(in_flight(layout.schedule, index, layout.pp, layout.virtual_stages, numbers.ledger.micro_batches))
    categories = {name: int(value) for name, value in memory.categories().items()}
    words = _held_by(numbers, memory, held, len(layers))
    return StageReport(index, layers, held, categories, sum(categories.values()), words)


def _held_by(numbers: Priced, memory: StageMemory, held: float, layers: int) -> str:
    """The largest categories until they make up three quarters of the peak, each with what it consists of."""
    reasons = _reasons(numbers, held, layers)
    peak, told, words = float(memory.peak_bytes), 0.0, []
    for name, value in sorted(memory.categories().items(), key=lambda item: -float(item[1])):
        if told >= 0.75 * peak:
            break
        told += float(value)
        words.append(f"{name.replace('_', ' ')} {float(value) / peak:.0%} ({reasons[name]})")
    return ", ".join(words)


def _reasons(numbers: Priced, held: float, layers: int) -> dict[str, str]:
    """What each category consists of, in words."""
    ledger = numbers.ledger
    layout, precision, shards = ledger.layout, ledger.precision, shard_ranks(ledger.layout)
    over = f" over dp_shard x cp = {shards}" if shards > 1 else ""
    if ledger.model.moe is not None and (expert_shards := layout.edp) != shards:
        over += f", of experts over {expert_shards}"
    kept = {"none": "all that the backward needs", "selective": "all but the attention core's", "full": "each layer's input"}[
        layout.recompute
    ]
    batches = f"{held / layout.virtual_stages:.3g} micro-batches" if held > layout.virtual_stages else "one micro-batch"
    return {
        "weights": f"{precision.weight}{f', zero=3{over}' if layout.zero == 3 else ''}",
        "gradients": f"{precision.gradient}{over if layout.zero >= 2 and layout.zero_variant == '' else ''}",
        "optimizer": f"{precision.state_bytes} bytes a parameter{over if layout.zero else ''}",
        "activations": f"{kept}, of {batches} and {layers} layers",
        "gathered": "every unit's parameters, kept" if layout.zero_variant == "keep" else "embedding or head, a layer and the next one",
        "gradient_bucket": "the whole gradient of the unit that is being reduced",
        "working": "the largest operation of a backward" + ("" if layout.recompute == "none" else " and what was recomputed for it"),
        "communication": "activations that arrive from the next stage or the one before",
    }
