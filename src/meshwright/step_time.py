"""Seconds of one optimizer step, in closed form: chunks, pipeline, data parallelism, optimizer.

    step = pipeline span (schedule/closed_form.py) of the chunks' forward and backward, where a chunk's time is compute and
           exposed collectives, the gathers and scatters of zero=3 and 2 included as far as they stick out
         + what the reduction of gradients sticks out of the last backward, the sums over tp
         + optimizer + ZeRO's parameter gather as far as it is not hidden + scalars

The parts sum to the step. They are those of the busiest stage; what it waits is ``bubble_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshwright.arithmetic import Num, is_array, larger, where
from meshwright.ledger.build import Stage
from meshwright.ledger.stages import Chunk
from meshwright.memory import units_of
from meshwright.priced import BlockNumbers, Cost, Priced
from meshwright.schedule.closed_form import pipeline_span_s


@dataclass(slots=True)
class Parts:
    """Exposed seconds of one step; they sum to ``step_s``."""

    compute_s: Num = 0.0
    recompute_s: Num = 0.0
    tp_s: Num = 0.0
    cp_s: Num = 0.0
    ep_s: Num = 0.0
    pp_s: Num = 0.0
    bubble_s: Num = 0.0
    dp_s: Num = 0.0
    optimizer_s: Num = 0.0
    other_s: Num = 0.0

    @property
    def step_s(self) -> Num:
        total: Num = 0.0
        for name in PART_NAMES:
            total = total + getattr(self, name)
        return total

    def as_dict(self) -> dict[str, Num]:
        return {name: getattr(self, name) for name in PART_NAMES}


PAIRED_SCHEDULES = ("dualpipe", "dualpipe-v")
"""Schedules that run the forward of one micro-batch beside the backward of another, so that each one's dispatch and combine
hide behind the other's compute (DeepSeek-V3, arXiv 2412.19437, section 3.2.1)."""

PART_NAMES = tuple(field.name for field in fields(Parts))


@dataclass(slots=True)
class ChunkTime:
    """One chunk and micro-batch: its passes, and what zero=2 and 3 expose in each."""

    forward: Cost
    recompute: Cost
    backward: Cost
    backward_weight_s: Num
    forward_dp_s: Num
    backward_dp_s: Num

    @property
    def forward_s(self) -> Num:
        return self.forward.total_s + self.forward_dp_s

    @property
    def backward_input_s(self) -> Num:
        return self.recompute.total_s + self.backward.total_s + self.backward_dp_s - self.backward_weight_s

    @property
    def busy_s(self) -> Num:
        return self.forward_s + self.recompute.total_s + self.backward.total_s + self.backward_dp_s


def step_parts(priced: Priced) -> tuple[Parts, Num]:
    """(the parts of a step, the pipeline's bubble fraction)."""
    ledger = priced.ledger
    layout, m, pp = ledger.layout, ledger.micro_batches, ledger.layout.pp
    times = chunk_times(priced)
    transfer_s = priced.boundary_s if pp > 1 else 0.0
    if pp == 1:
        span = m * sum((times[i].busy_s for i in range(len(times))), 0.0)
    else:
        span = pipeline_span_s(
            layout.schedule, np.stack([np.asarray(t.forward_s) for t in times]), np.stack([np.asarray(t.backward_input_s) for t in times]),
            np.stack([np.asarray(t.backward_weight_s) for t in times]), m, pp, layout.virtual_stages, transfer_s,
            overlap=ledger.stack.hides_pipeline,
        )  # fmt: skip
        span = span if span.ndim else float(span)
    parts, all_busy = _busiest(priced, times, transfer_s, span)
    _add_end(parts, priced, times)
    return parts, where(span > 0, larger(1.0 - all_busy / (pp * span), 0.0), 0.0)


def chunk_times(priced: Priced) -> list[ChunkTime]:
    """One entry per chunk in model order; equal chunks are worked out once."""
    pipeline = priced.ledger.pipeline
    known = {first: _chunk_time(priced, pipeline.chunks[first]) for first in dict.fromkeys(pipeline.contents)}
    return [known[first] for first in pipeline.contents]


def _chunk_time(priced: Priced, chunk: Chunk) -> ChunkTime:
    blocks = _blocks(priced, chunk)
    forward, recompute, backward, weight = Cost(), Cost(), Cost(), Cost()
    for numbers, count in blocks:
        forward = forward.plus(numbers.forward, count)
        recompute = recompute.plus(numbers.recompute, count)
        backward = backward.plus(numbers.backward_input, count).plus(numbers.backward_weight, count)
        weight = weight.plus(numbers.backward_weight, count)
    if priced.ledger.layout.schedule in PAIRED_SCHEDULES:
        forward.ep_s, backward.ep_s = (
            larger(forward.ep_s - backward.compute_s, 0.0),
            larger(backward.ep_s - forward.compute_s, 0.0),
        )
    forward_dp, backward_dp = _micro_batch_dp(priced, chunk)
    return ChunkTime(forward, recompute, backward, weight.total_s, forward_dp, backward_dp)


def _blocks(priced: Priced, chunk: Chunk) -> list[tuple[BlockNumbers, int]]:
    found: list[tuple[BlockNumbers, int]] = [(priced.embedding, 1)] if chunk.first else []
    found += [(priced.layer(block), count) for block, count in chunk.layers]
    if chunk.last:
        found.append((priced.head, 1))
        if count := priced.ledger.model.mtp_layers:
            layer = priced.layer(priced.ledger.mtp_layer)
            found += [(priced.mtp, count), (layer, count), (priced.embedding, count), (priced.head, count)]
    return found


def _micro_batch_dp(priced: Priced, chunk: Chunk) -> tuple[Num, Num]:
    """What zero=2 and 3 expose in a chunk's forward and backward of one micro-batch.

    With prefetch a layer's gather runs beside the layer before it, and in the backward the next gather and the last
    scatter run beside a layer: exposed is what is longer than the layer. The first gather and the last scatter have
    nothing beside them.
    """
    hides = priced.ledger.stack.hides_data_parallel
    forward: Num = 0.0
    backward: Num = 0.0
    first: Num = 0.0
    pairs = [(priced.layer_unit(block.kind), priced.layer(block), count) for block, count in chunk.layers]
    if chunk.last and (count := priced.ledger.model.mtp_layers):
        pairs.append((priced.mtp_unit, priced.layer(priced.ledger.mtp_layer), count))
    for unit, layer, count in pairs:
        gather, back = unit.gather_s, unit.regather_s + unit.scatter_s
        if hides:
            gather, back = larger(gather - layer.forward_s, 0.0), larger(back - layer.backward_s, 0.0)
        forward, backward = forward + count * gather, backward + count * back
    if hides and pairs:
        first = pairs[0][0].gather_s
        backward = backward + pairs[0][0].scatter_s
    if chunk.first or chunk.last:
        root = priced.root(*_root_of(priced, chunk))
        first, backward = first + root.gather_s, backward + root.scatter_s
    return forward + first, backward


def _root_of(priced: Priced, chunk: Chunk) -> tuple[bool, bool]:
    """The root of the chunk's stage; where one rank has both ends of the model, they are one root."""
    pipeline = priced.ledger.pipeline
    chunks = pipeline.chunks_of(pipeline.placement[chunk.index])
    return any(c.first for c in chunks), any(c.last for c in chunks)


def _busiest(priced: Priced, times: list[ChunkTime], transfer_s: Num, span: Num) -> tuple[Parts, Num]:
    """The parts of the stage that is busy longest, with its waiting; and the busy seconds of all stages together."""
    ledger = priced.ledger
    m = ledger.micro_batches
    copies = 2 if ledger.layout.schedule == "dualpipe" else 1
    most: Num = -1.0
    parts = Parts()
    all_busy: Num = 0.0
    for index, count in ledger.pipeline.representatives:
        stage = ledger.stage(index)
        own = _stage_parts(priced, stage, [times[chunk.index] for chunk in stage.chunks], transfer_s, m / copies)
        busy = own.step_s
        better = busy > most
        parts = _pick(better, own, parts)
        most = where(better, busy, most)
        all_busy = all_busy + count * busy
    parts.bubble_s = larger(span - most, 0.0)
    return parts, all_busy


def stage_parts(priced: Priced, index: int) -> Parts:
    """The parts of one stage by itself; what it waits for others is not in them (``bubble_s`` is 0)."""
    ledger = priced.ledger
    stage, times = ledger.stage(index), chunk_times(priced)
    copies = 2 if ledger.layout.schedule == "dualpipe" else 1
    mine = [times[chunk.index] for chunk in stage.chunks]
    transfer_s = priced.boundary_s if ledger.layout.pp > 1 else 0.0
    parts = _stage_parts(priced, stage, mine, transfer_s, ledger.micro_batches / copies)
    end = _stage_end(priced, stage, times)
    return Parts(*(getattr(parts, name) + getattr(end, name) for name in PART_NAMES))


def _pick(better: Num, own: Parts, other: Parts) -> Parts:
    """``own`` where it is better."""
    if not is_array(better):
        return own if better else other
    return Parts(*(np.where(better, getattr(own, name), getattr(other, name)) for name in PART_NAMES))


def _stage_parts(priced: Priced, stage: Stage, times: list[ChunkTime], transfer_s: Num, m: Num) -> Parts:
    parts = Parts()
    for time in times:
        parts.compute_s = parts.compute_s + m * (time.forward.compute_s + time.backward.compute_s)
        parts.recompute_s = parts.recompute_s + m * time.recompute.compute_s
        for axis in ("tp_s", "cp_s", "ep_s"):
            exposed = getattr(time.forward, axis) + getattr(time.recompute, axis) + getattr(time.backward, axis)
            setattr(parts, axis, getattr(parts, axis) + m * exposed)
        parts.dp_s = parts.dp_s + m * (time.forward_dp_s + time.backward_dp_s)
    if not priced.ledger.stack.hides_pipeline:
        received, sent = stage.boundaries()
        parts.pp_s = m * ((received + sent) * transfer_s)
    return parts


def _add_end(parts: Parts, priced: Priced, times: list[ChunkTime]) -> None:
    """What comes after the last backward, on the stage for which it takes longest."""
    worst: Num = -1.0
    found = Parts()
    for index, _ in priced.ledger.pipeline.representatives:
        own = _stage_end(priced, priced.ledger.stage(index), times)
        total = own.step_s
        better = total > worst
        found = _pick(better, own, found)
        worst = where(better, total, worst)
    for name in PART_NAMES:
        setattr(parts, name, getattr(parts, name) + getattr(found, name))


def _stage_end(priced: Priced, stage: Stage, times: list[ChunkTime]) -> Parts:
    """Reductions hide behind the backward of the last micro-batch, all but the last unit's; ZeRO's parameter gather
    behind the next forward, where the stack does so."""
    stack = priced.ledger.stack
    mine = [times[chunk.index] for chunk in stage.chunks]
    parts = Parts()
    reduce_s, keep_s, collect_s, last_s = _once_per_step(priced, stage, parts)
    forward_s: Num = 0.0
    backward_s: Num = 0.0
    for time in mine:
        forward_s, backward_s = forward_s + time.forward_s, backward_s + time.recompute.total_s + time.backward.total_s
    if stack.hides_data_parallel:
        reduce_s = larger(last_s, reduce_s - backward_s)
    collect_s = larger(keep_s - forward_s, 0.0) + (larger(collect_s - forward_s, 0.0) if stack.hides_parameter_gather else collect_s)
    parts.dp_s = parts.dp_s + reduce_s + collect_s
    parts.other_s = priced.scalars_s
    return parts


def _once_per_step(priced: Priced, stage: Stage, parts: Parts) -> tuple[Num, Num, Num, Num]:
    """(reductions, gathers before the forward, gathers after the optimizer, the last unit's reduction) of a stage.

    What nothing can hide goes to ``parts``: sums over tp, of a shared embedding, of copies of stages, of loads; AdamW.
    zero=2 and 3 sum replicated key and value rows in every micro-batch. The backward ends with the embedding where the
    stage has it, else with its first layer.
    """
    m = priced.ledger.micro_batches
    mirrored = priced.ledger.layout.schedule == "dualpipe" and priced.ledger.layout.pp > 1
    reduce_s: Num = 0.0
    keep_s: Num = 0.0
    collect_s: Num = 0.0
    units = units_of(priced, stage)
    for unit, count, _ in units:
        reduce_s, keep_s, collect_s = reduce_s + count * unit.reduce_s, keep_s + count * unit.keep_s, collect_s + count * unit.collect_s
        parts.tp_s = parts.tp_s + count * (unit.tensor_s + m * unit.copies_s)
        parts.ep_s = parts.ep_s + count * unit.loads_s
        parts.dp_s = parts.dp_s + count * (unit.shared_s + unit.mirror_s if mirrored else unit.shared_s)
        parts.optimizer_s = parts.optimizer_s + count * unit.optimizer_s
    return reduce_s, keep_s, collect_s, (units[-1] if stage.first else units[0])[0].reduce_s
