"""Seconds of one optimizer step, in closed form: chunks, pipeline, data parallelism, optimizer.

    step = pipeline span (schedule/closed_form.py) of the chunks' forward and backward, where a chunk's time is compute and
           exposed collectives, the gathers and scatters of zero=3 and 2 included as far as they stick out
         + what the reduction of gradients sticks out of the last backward, the sums over tp
         + optimizer + ZeRO's parameter gather as far as it is not hidden + scalars

The parts sum to the step. They are those of the busiest stage; what it waits is ``bubble_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from meshwright.arithmetic import Num, is_array, larger, where
from meshwright.ledger.build import Stage
from meshwright.ledger.stages import Chunk
from meshwright.memory import units_of
from meshwright.priced import BlockNumbers, Cost, Priced, UnitNumbers
from meshwright.schedule.closed_form import pipeline_span_s
from meshwright.schedule.dualpipe import pair_counts

PAIRED_SCHEDULES = ("dualpipe", "dualpipe-v")
"""Schedules that run a forward and a backward as one."""


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


PART_NAMES = tuple(field.name for field in fields(Parts))


@dataclass
class ChunkTime:
    """One chunk and micro-batch: its passes, and what zero=2 and 3 expose in each; the lanes are all that
    these send in each pass, the ends what no layer of the pass can hide: the first gather, the last scatter, the root."""

    forward: Cost
    recompute: Cost
    backward: Cost
    backward_weight_s: Num
    forward_dp_s: Num
    backward_dp_s: Num
    forward_lane_s: Num
    backward_lane_s: Num
    ends_s: tuple[Num, Num]

    @cached_property
    def forward_s(self) -> Num:
        return self.forward.total_s + self.forward_dp_s

    @cached_property
    def backward_s(self) -> Num:
        """Without what zero=2 and 3 expose."""
        return self.recompute.total_s + self.backward.total_s

    @cached_property
    def backward_input_s(self) -> Num:
        return self.backward_s + self.backward_dp_s - self.backward_weight_s

    @cached_property
    def busy_s(self) -> Num:
        return self.forward_s + self.backward_s + self.backward_dp_s


def step_parts(priced: Priced) -> tuple[Parts, Num]:
    """(the parts of a step, the pipeline's bubble fraction)."""
    ledger = priced.ledger
    layout, m, pp = ledger.layout, ledger.micro_batches, ledger.layout.pp
    times = chunk_times(priced)
    transfer_s = priced.boundary_s if pp > 1 else 0.0
    if pp == 1:
        span = m * sum((times[i].busy_s for i in range(len(times))), 0.0)
    else:
        saving: Num = 0.0
        if layout.schedule in PAIRED_SCHEDULES:
            saved = zip(paired_savings_s(priced, times), times, strict=True)
            saving = np.stack([np.asarray(saved_s + 0.0 * time.forward_s) for saved_s, time in saved])
        span = pipeline_span_s(
            layout.schedule, np.stack([np.asarray(t.forward_s) for t in times]), np.stack([np.asarray(t.backward_input_s) for t in times]),
            np.stack([np.asarray(t.backward_weight_s) for t in times]), m, pp, layout.virtual_stages, transfer_s,
            overlap=ledger.stack.hides_pipeline, paired_saving_s=saving,
        )  # fmt: skip
        span = span if span.ndim else float(span)
    parts, all_busy = _busiest(priced, times, span)
    _add_end(parts, priced, times)
    return parts, where(span > 0, larger(1.0 - all_busy / (pp * span), 0.0), 0.0) if pp > 1 else 0.0


def paired_savings_s(priced: Priced, times: list[ChunkTime]) -> list[Num]:
    """For each chunk, what its forward saves when it runs as one with a backward of its rank's other chunk; 0 without pairs."""
    layout = priced.ledger.layout
    if layout.pp == 1 or layout.schedule not in PAIRED_SCHEDULES:
        return [0.0] * len(times)
    pairs = list(zip(times, reversed(times), strict=True))
    known = {(id(forward), id(backward)): _paired_saving_s(priced, forward, backward) for forward, backward in pairs}
    return [known[id(forward), id(backward)] for forward, backward in pairs]


def _paired_saving_s(priced: Priced, forward: ChunkTime, backward: ChunkTime) -> Num:
    """DualPipe: dispatch and combine of each hide behind the rest of the other (arXiv 2412.19437 section 3.2.1).

    Their gathers and scatters hide behind what remains, but for those that no layer hides. Without experts nothing is saved.
    """
    there_s, back_s = forward.forward.total_s, backward.recompute.total_s + backward.backward.total_s
    there_ep_s, back_ep_s = forward.forward.ep_s, backward.recompute.ep_s + backward.backward.ep_s
    pair_s = larger(back_s - back_ep_s, there_ep_s) + larger(there_s - there_ep_s, back_ep_s)
    pair_s = larger(pair_s + forward.ends_s[0] + backward.ends_s[1], forward.forward_lane_s + backward.backward_lane_s)
    apart_s = there_s + back_s + forward.forward_dp_s + backward.backward_dp_s
    return where(there_ep_s + back_ep_s > 0, larger(apart_s - pair_s, 0.0), 0.0)


def chunk_times(priced: Priced) -> list[ChunkTime]:
    """One entry per chunk in model order; equal chunks are worked out once, and all of them once for each Priced."""
    if priced.chunk_times is None:
        pipeline = priced.ledger.pipeline
        known = {first: _chunk_time(priced, pipeline.chunks[first]) for first in dict.fromkeys(pipeline.contents)}
        priced.chunk_times = [known[first] for first in pipeline.contents]
    times: list[ChunkTime] = priced.chunk_times
    return times


def _chunk_time(priced: Priced, chunk: Chunk) -> ChunkTime:
    blocks = _blocks(priced, chunk)
    forward, recompute, backward, weight = Cost(), Cost(), Cost(), Cost()
    for numbers, count in blocks:
        forward = forward.plus(numbers.forward, count)
        recompute = recompute.plus(numbers.recompute, count)
        backward = backward.plus(numbers.backward_input, count).plus(numbers.backward_weight, count)
        weight = weight.plus(numbers.backward_weight, count)
    return ChunkTime(forward, recompute, backward, weight.total_s, *_micro_batch_dp(priced, chunk))


def _blocks(priced: Priced, chunk: Chunk) -> list[tuple[BlockNumbers, int]]:
    found: list[tuple[BlockNumbers, int]] = [(priced.embedding, 1)] if chunk.first else []
    found += [(priced.layer(block), count) for block, count in chunk.layers]
    if chunk.last:
        found.append((priced.head, 1))
        if count := priced.ledger.model.mtp_layers:
            layer = priced.layer(priced.ledger.mtp_layer)
            found += [(priced.mtp, count), (layer, count), (priced.embedding, count), (priced.head, count)]
    return found


def _micro_batch_dp(priced: Priced, chunk: Chunk) -> tuple[Num, Num, Num, Num, tuple[Num, Num]]:
    """What zero=2 and 3 expose in a chunk's forward and backward of one micro-batch, exact for equal layers (timeline/sharded.py);
    and ChunkTime's last fields.

    One collective at a time, a gather one layer ahead. Forward: the first layer's gather hides behind the embedding alone, every
    other one behind the layer before it. Backward: the first gather hides behind the head, the second behind the first layer, and
    from then on a scatter and a gather together behind a layer; the last layer hides the scatter before its own, which has
    nothing but the embedding beside it.
    """
    hides = priced.ledger.stack.hides_data_parallel
    forward: Num = 0.0
    backward: Num = 0.0
    forward_lane: Num = 0.0
    backward_lane: Num = 0.0
    ends, pairs = (0.0, 0.0), layer_pairs(priced, chunk)
    for unit, layer, count in pairs:
        gather, back = unit.gather_s, unit.regather_s + unit.scatter_s
        forward_lane, backward_lane = forward_lane + count * gather, backward_lane + count * back
        if hides:
            gather, back = larger(gather - layer.forward_s, 0.0), larger(back - layer.backward_s, 0.0)
        forward, backward = forward + count * gather, backward + count * back
    if hides and pairs:
        (first, first_layer, _), (last, last_layer, _) = pairs[0], pairs[-1]
        ends = (first.gather_s, last.regather_s + first.scatter_s)
        embedding, head = priced.embedding if chunk.first else None, priced.head if chunk.last else None
        forward = forward - larger(first.gather_s - first_layer.forward_s, 0.0) + _beyond(first.gather_s, embedding and embedding.forward_s)
        backward = backward - larger(last.regather_s + last.scatter_s - last_layer.backward_s, 0.0)
        backward = (
            backward + _beyond(last.regather_s, head and head.backward_s) + _beyond(first.scatter_s, embedding and embedding.backward_s)
        )
        if sum(count for _, _, count in pairs) > 1:
            backward = backward - larger(first.regather_s + first.scatter_s - first_layer.backward_s, 0.0)
            backward = backward + larger(last.regather_s - last_layer.backward_s, 0.0)
            backward = backward + larger(first.scatter_s - first_layer.backward_s, 0.0)
    if chunk.first or chunk.last:
        root = priced.root(*root_of(priced, chunk))
        back_s = chunk.root_again * root.regather_s + root.scatter_s
        forward, backward = forward + root.gather_s, backward + back_s
        forward_lane, backward_lane = forward_lane + root.gather_s, backward_lane + back_s
        ends = (ends[0] + root.gather_s, ends[1] + back_s)
    # What is subtracted cancels to the last bit only.
    return larger(forward, 0.0), larger(backward, 0.0), forward_lane, backward_lane, ends if hides else (forward_lane, backward_lane)


def _beyond(seconds: Num, hidden_by_s: Num | None) -> Num:
    """What sticks out; all of it where nothing hides it."""
    return seconds if hidden_by_s is None else larger(seconds - hidden_by_s, 0.0)


def layer_pairs(priced: Priced, chunk: Chunk) -> list[tuple[UnitNumbers, BlockNumbers, int]]:
    """(unit, its block, how often) of a chunk's layers in the order of the forward; those of multi-token prediction are last."""
    pairs = [(priced.layer_unit(block.kind), priced.layer(block), count) for block, count in chunk.layers]
    if chunk.last and (count := priced.ledger.model.mtp_layers):
        pairs.append((priced.mtp_unit, priced.layer(priced.ledger.mtp_layer), count))
    return pairs


def root_of(priced: Priced, chunk: Chunk) -> tuple[bool, bool]:
    """The root of the chunk's stage; where one rank has both ends of the model, they are one root."""
    pipeline = priced.ledger.pipeline
    chunks = pipeline.chunks_of(pipeline.placement[chunk.index])
    return any(c.first for c in chunks), any(c.last for c in chunks)


def busy_parts(priced: Priced, times: list[ChunkTime], index: int) -> Parts:
    """What one stage computes, exposes and sends before its end of the step."""
    ledger = priced.ledger
    stage, copies = ledger.stage(index), 2 if ledger.layout.schedule == "dualpipe" else 1
    transfer_s = priced.boundary_s if ledger.layout.pp > 1 else 0.0
    return _stage_parts(priced, stage, [times[chunk.index] for chunk in stage.chunks], transfer_s, ledger.micro_batches / copies)


def _busiest(priced: Priced, times: list[ChunkTime], span: Num) -> tuple[Parts, Num]:
    """The parts of the stage that is busy longest, with its waiting; and the busy seconds of all stages together."""
    most: Num = -1.0
    parts = Parts()
    all_busy: Num = 0.0
    for index, count in priced.ledger.pipeline.representatives:
        own = busy_parts(priced, times, index)
        busy = own.step_s
        better = busy > most
        parts = _pick(better, own, parts)
        most = where(better, busy, most)
        all_busy = all_busy + count * busy
    # With one stage the two sums differ by rounding alone.
    parts.bubble_s = larger(span - most, 0.0) if priced.ledger.layout.pp > 1 else 0.0
    return parts, all_busy


def stage_parts(priced: Priced, index: int) -> Parts:
    """The parts of one stage by itself; what it waits for others is not in them (``bubble_s`` is 0)."""
    times = chunk_times(priced)
    parts, stage = busy_parts(priced, times, index), priced.ledger.stage(index)
    end = _stage_end(priced, stage, times)
    return Parts(*(getattr(parts, name) + getattr(end, name) for name in PART_NAMES))


def _pick(better: Num, own: Parts, other: Parts) -> Parts:
    """``own`` where it is better."""
    if not is_array(better):
        return own if better else other
    return Parts(*(np.where(better, getattr(own, name), getattr(other, name)) for name in PART_NAMES))


def _stage_parts(priced: Priced, stage: Stage, times: list[ChunkTime], transfer_s: Num, m: Num) -> Parts:
    parts = Parts()
    for time, count in _counted(times):
        passes = m * count
        parts.compute_s = parts.compute_s + passes * (time.forward.compute_s + time.backward.compute_s)
        parts.recompute_s = parts.recompute_s + passes * time.recompute.compute_s
        for axis in ("tp_s", "cp_s", "ep_s"):
            exposed = getattr(time.forward, axis) + getattr(time.recompute, axis) + getattr(time.backward, axis)
            setattr(parts, axis, getattr(parts, axis) + passes * exposed)
        parts.dp_s = parts.dp_s + passes * (time.forward_dp_s + time.backward_dp_s)
    layout = priced.ledger.layout
    if layout.pp > 1 and layout.schedule in PAIRED_SCHEDULES:
        inward, outward = times
        there, back = pair_counts(layout.schedule, stage.index, layout.pp, priced.ledger.micro_batches)
        saved_s = there * _paired_saving_s(priced, inward, outward) + back * _paired_saving_s(priced, outward, inward)
        rest_s = larger(saved_s - parts.ep_s, 0.0)
        parts.ep_s, parts.dp_s = larger(parts.ep_s - saved_s, 0.0), larger(parts.dp_s - rest_s, 0.0)
    if not priced.ledger.stack.hides_pipeline:
        received, sent = stage.boundaries()
        parts.pp_s = m * ((received + sent) * transfer_s)
    return parts


def _counted(times: list[ChunkTime]) -> list[tuple[ChunkTime, int]]:
    """Each different chunk time with how often it occurs: equal chunks share one (``chunk_times``)."""
    counts: dict[int, int] = {}
    for time in times:
        counts[id(time)] = counts.get(id(time), 0) + 1
    first = {id(time): time for time in times}
    return [(first[key], count) for key, count in counts.items()]


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
    """Reductions run one after the other behind the backward of the last micro-batch, each from the end of its layer's backward;
    ZeRO's parameter gather behind the next forward, where the stack does so. Exact for equal layers (timeline/reduction.py): then
    what sticks out is what comes after the first unit's, the last layer's or the last unit's gradient."""
    parts = Parts()
    once = once_per_step(priced, stage, parts)
    backward_s: Num = 0.0
    for time, count in _counted([times[chunk.index] for chunk in stage.chunks]):
        backward_s = backward_s + count * time.backward_s
    reduce_s = once.reduce_s
    if priced.ledger.stack.hides_data_parallel:
        last_s = larger(once.last_s, once.before_last_s + once.last_s - once.beside_last_s)
        reduce_s = larger(last_s, reduce_s - (backward_s - once.before_first_s))
    parts.dp_s = parts.dp_s + reduce_s + exposed_gather_s(priced, stage, times, once)
    parts.other_s = priced.scalars_s
    return parts


def exposed_gather_s(priced: Priced, stage: Stage, times: list[ChunkTime], once: OncePerStep) -> Num:
    """What sticks out of one micro-batch's forward: zero=3:keep's gather before it, and ZeRO's gather after the optimizer, which
    nothing hides unless the stack lets the next step's forward do so."""
    forward_s: Num = 0.0
    for chunk in stage.chunks:
        forward_s = forward_s + times[chunk.index].forward_s
    collect_s = larger(once.collect_s - forward_s, 0.0) if priced.ledger.stack.hides_parameter_gather else once.collect_s
    return larger(once.keep_s - forward_s, 0.0) + collect_s


@dataclass(slots=True)
class OncePerStep:
    """A stage's data-parallel collectives of a step, in seconds.

    Attributes:
        reduce_s: reductions of all units. keep_s, collect_s: gathers before the forward and after the optimizer.
        before_first_s: backward of the last micro-batch before the first unit's gradient is there.
        before_last_s, last_s: reductions of the last two units. beside_last_s: computed from the one's gradient to the other's.
    """

    reduce_s: Num
    keep_s: Num
    collect_s: Num
    before_first_s: Num
    before_last_s: Num
    last_s: Num
    beside_last_s: Num


def once_per_step(priced: Priced, stage: Stage, parts: Parts) -> OncePerStep:
    """What a stage does once per step.

    What nothing can hide goes to ``parts``: sums over tp, of a shared embedding, of copies of stages, of loads; AdamW.
    zero=2 and 3 sum replicated key and value rows in every micro-batch. The backward ends with the embedding where the
    stage has it, else with its first layer; the root of a last stage is there as soon as the head's backward has run.
    """
    m = priced.ledger.micro_batches
    mirrored = priced.ledger.layout.schedule == "dualpipe" and priced.ledger.layout.pp > 1
    reduce_s: Num = 0.0
    keep_s: Num = 0.0
    collect_s: Num = 0.0
    for unit, count, _ in units_of(priced, stage):
        reduce_s, keep_s, collect_s = reduce_s + count * unit.reduce_s, keep_s + count * unit.keep_s, collect_s + count * unit.collect_s
        parts.tp_s = parts.tp_s + count * (unit.tensor_s + m * unit.copies_s)
        parts.ep_s = parts.ep_s + count * unit.loads_s
        parts.dp_s = parts.dp_s + count * (unit.shared_s + unit.mirror_s if mirrored else unit.shared_s)
        parts.optimizer_s = parts.optimizer_s + count * unit.optimizer_s
    return OncePerStep(reduce_s, keep_s, collect_s, *_around_reductions(priced, stage))


def _around_reductions(priced: Priced, stage: Stage) -> tuple[Num, Num, Num, Num]:
    """OncePerStep's fields from ``before_first_s`` on."""
    pairs = [pair for chunk in stage.chunks for pair in layer_pairs(priced, chunk)]
    head_s = priced.head.backward_s if stage.last else 0.0
    root_s = priced.root(stage.first, stage.last).reduce_s if stage.first or stage.last else 0.0
    if not pairs:
        return 0.0, 0.0, root_s, 0.0
    layer_s = pairs[0][0].reduce_s
    before_first_s = head_s if stage.last and not stage.first else head_s + pairs[-1][1].backward_s
    if stage.first:
        return before_first_s, layer_s, root_s, priced.embedding.backward_s
    return before_first_s, 0.0, layer_s, 0.0
