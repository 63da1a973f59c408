"""Bytes on a device: what stays, what the micro-batches in flight keep, and what is there for a moment at the peak.

weights, gradients, optimizer   from the units, by ZeRO stage (Rajbhandari et al., arXiv 1910.02054, section 5)
activations                     saved bytes of the chunk x micro-batches in flight (the schedule's)
gathered                        zero=3: the root, one unit and the one prefetched behind it; keep: all
gradient_bucket                 zero=2, 3: the whole gradient of the unit that is being reduced
working                         the largest operation of a backward, with what recomputation brought back
communication                   received activations of a pipeline boundary, double buffered
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields
from typing import Any

from meshwright.arithmetic import Num, larger, where
from meshwright.ledger.build import Stage
from meshwright.ledger.data_parallel import Unit
from meshwright.ledger.stages import Chunk
from meshwright.priced import Priced, UnitNumbers
from meshwright.schedule.in_flight import in_flight_chunks
from meshwright.spec.workload import Precision
from meshwright.units import DTYPE_BYTES


@dataclass(slots=True)
class StageMemory:
    """Bytes by category on one rank of a stage at its peak."""

    weights: Num = 0
    gradients: Num = 0
    optimizer: Num = 0
    activations: Num = 0
    gathered: Num = 0
    gradient_bucket: Num = 0
    working: Num = 0
    communication: Num = 0
    parameter_bytes: Num = 0
    """All that the parameters cause: weights, gradients, optimizer, gathered, gradient_bucket; added up once for many policies."""

    @property
    def state_bytes(self) -> Num:
        """What stays from step to step: weights and optimizer state."""
        return self.weights + self.optimizer

    @property
    def peak_bytes(self) -> Num:
        return self.parameter_bytes + self.activations + self.working + self.communication

    def categories(self) -> dict[str, Num]:
        return {name: getattr(self, name) for name in CATEGORIES}


CATEGORIES = tuple(field.name for field in fields(StageMemory) if field.name != "parameter_bytes")


def stage_memory(priced: Priced, index: int) -> StageMemory:
    """The peak of pipeline rank ``index``."""
    stage = priced.ledger.stage(index)
    memory = copy(_state(priced, stage))
    _activations(memory, priced, stage)
    if priced.ledger.layout.pp > 1:
        s = priced.ledger.sizes
        memory.communication = 2 * s.bytes(s.stream)
    return memory


def peak_bytes(priced: Priced) -> Num:
    """Peak of the fullest rank."""
    peak: Num = 0
    for index in candidates(priced):
        peak = larger(peak, stage_memory(priced, index).peak_bytes)
    return peak


def candidates(priced: Priced) -> tuple[int, ...]:
    """Stages of which one is the fullest: the first of each composition, since micro-batches in flight fall along the
    stages; under zb-v they rise where there are few of them, so its last ones count, too."""
    pipeline = priced.ledger.pipeline
    if priced.ledger.layout.schedule == "zb-v":
        return pipeline.ends
    return tuple(index for index, _ in pipeline.representatives)


def units_of(priced: Priced, stage: Stage) -> list[tuple[UnitNumbers, int, bool]]:
    """(unit, how often, whether it is the root) of a stage."""
    key = priced.ledger.pipeline.state_keys[stage.index]
    found = [(priced.layer_unit(kind), count, False) for kind, count in key.kinds]
    if key.last and priced.ledger.model.mtp_layers:
        found.append((priced.mtp_unit, priced.ledger.model.mtp_layers, False))
    if key.first or key.last:
        found.append((priced.root(key.first, key.last), 1, True))
    return found


def _state(priced: Priced, stage: Stage) -> StageMemory:
    """What the stage's units take. The search meets one stage's units under many schedules and recompute policies; they are
    added up once."""
    key = priced.ledger.pipeline.state_keys[stage.index]
    found: StageMemory | None = priced.units.get(key)
    if found is None:
        found = StageMemory()
        _add_state(found, priced, stage)
        found.parameter_bytes = found.weights + found.gradients + found.optimizer + found.gathered + found.gradient_bucket
        priced.units[key] = found
    return found


def resident_bytes(unit: UnitNumbers | Unit, layout: Any, precision: Precision) -> tuple[Num, Num]:
    """(weights, optimizer state) of one unit, which stay from step to step."""
    weights = (unit.shard if layout.zero == 3 else unit.numel) * int(DTYPE_BYTES[precision.weight])
    return weights, (unit.shard if layout.zero else unit.numel) * precision.state_bytes


def _add_state(memory: StageMemory, priced: Priced, stage: Stage) -> None:
    """Weights, gradients, optimizer, and what zero=2 and 3 have whole for a moment."""
    layout, precision = priced.ledger.layout, priced.ledger.precision
    zero, variant = layout.zero, layout.zero_variant
    gradient = int(DTYPE_BYTES[precision.gradient])
    gathered_bytes = int(DTYPE_BYTES[precision.gathered])
    whole_gradients = zero < 2 or variant in ("local", "keep")
    largest: Num = 0
    root: Num = 0
    kept: Num = 0
    for unit, count, is_root in units_of(priced, stage):
        weights, optimizer = resident_bytes(unit, layout, precision)
        memory.weights, memory.optimizer = memory.weights + count * weights, memory.optimizer + count * optimizer
        elements = unit.numel if whole_gradients else unit.shard
        memory.gradients = memory.gradients + count * elements * gradient
        kept = kept + count * unit.gathered
        if is_root:
            root = unit.gathered
        else:
            largest = larger(largest, unit.gathered)
    if zero == 3:
        memory.gathered = (kept if variant == "keep" else root + 2 * largest) * gathered_bytes
    if zero >= 2 and not whole_gradients:
        memory.gradient_bucket = larger(largest, root) * int(DTYPE_BYTES[precision.gathered])


def _activations(memory: StageMemory, priced: Priced, stage: Stage) -> None:
    ledger = priced.ledger
    layout, m = ledger.layout, ledger.micro_batches
    kept: Num = 0
    head: Num = 0
    working: Num = 0
    for chunk, count in ledger.pipeline.held[stage.index]:
        saved, head_saved, largest = _chunk_bytes(priced, chunk)
        kept, head, working = kept + count * saved, head + count * head_saved, larger(working, largest)
    held = in_flight(layout.schedule, stage.index, layout.pp, layout.virtual_stages, m)
    memory.activations = held * kept / len(ledger.pipeline.stages[stage.index]) + head * (m if layout.schedule == "gpipe" else 1)
    memory.working = working


def _chunk_bytes(priced: Priced, chunk: Chunk) -> tuple[Num, Num, Num]:
    """``_add_chunk_bytes``, worked out once for equal chunks."""
    key = ("bytes", chunk.content)
    if key not in priced.blocks:
        priced.blocks[key] = _add_chunk_bytes(priced, chunk)
    found: tuple[Num, Num, Num] = priced.blocks[key]
    return found


def _add_chunk_bytes(priced: Priced, chunk: Chunk) -> tuple[Num, Num, Num]:
    """(saved by embedding and layers, saved by the head, largest working set) of one micro-batch.

    The head's backward follows its forward at once in every schedule but gpipe, so its logits are not multiplied by the
    micro-batches in flight; a multi-token-prediction layer comes with it.
    """
    saved: Num = 0
    head: Num = 0
    working: Num = 0
    if chunk.first:
        saved = saved + priced.embedding.saved_bytes
    for block, count in chunk.layers:
        numbers = priced.layer(block)
        saved = saved + count * numbers.saved_bytes
        working = larger(working, numbers.working_bytes)
    if chunk.last:
        head = priced.head.saved_bytes
        working = larger(working, priced.head.working_bytes)
        if mtp := priced.ledger.model.mtp_layers:
            layer = priced.layer(priced.ledger.mtp_layer)
            head = head + mtp * (priced.mtp.saved_bytes + layer.saved_bytes + priced.head.saved_bytes)
            working = larger(working, layer.working_bytes)
    return saved, head, working


def in_flight(schedule: str, rank: int, p: int, v: int, m: Num) -> Num:
    """Most chunk activations that a pipeline rank holds."""
    if p == 1 and schedule != "gpipe":
        return where(m > 0, 1, 0)
    return in_flight_chunks(schedule, rank, p, v, m)
