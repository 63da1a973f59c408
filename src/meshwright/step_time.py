"""Seconds of one optimizer step, in closed form: chunks, pipeline, data parallelism, optimizer.

    step = pipeline span (schedule/closed_form.py) of the chunks' forward and backward, where a chunk's time is compute and
           exposed collectives, the gathers and scatters of zero=3 and 2 included as far as they stick out
         + what the reduction of gradients sticks out of the last backward, the sums over tp
         + optimizer + ZeRO's parameter gather as far as it is not hidden + scalars

The parts sum to the step, but for rounding. They are those of the busiest stage; what it waits is ``bubble_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshwright.arithmetic import Num, is_array, larger, smaller, where
from meshwright.boundaries import between_chunks_s, representatives, sent_s
from meshwright.chunk_time import PAIRED_SCHEDULES, ChunkTime, chunk_times, layer_pairs, paired_saving_s, paired_savings_s
from meshwright.ledger.build import Stage
from meshwright.memory import units_of
from meshwright.priced import BlockNumbers, Priced
from meshwright.schedule.closed_form import pipeline_span_s
from meshwright.schedule.dualpipe import pair_counts
from meshwright.spec.layout import Layout


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

WEIGHTS_LAST = ("zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v")
"""Schedules that put weight halves off: the last thing that a stage does for a chunk is one."""


def span_s(priced: Priced) -> Num:
    """From the first computation to the last one of any stage."""
    ledger = priced.ledger
    layout, m, pp = ledger.layout, ledger.micro_batches, ledger.layout.pp
    times = chunk_times(priced)
    if pp == 1:
        return m * sum((times[i].busy_s for i in range(len(times))), 0.0)
    saving: Num = 0.0
    if layout.schedule in PAIRED_SCHEDULES:
        saved = zip(paired_savings_s(priced, times), times, strict=True)
        saving = np.stack([np.asarray(saved_s + 0.0 * time.forward_s) for saved_s, time in saved])
    span = pipeline_span_s(
        layout.schedule, np.stack([np.asarray(t.forward_s) for t in times]), np.stack([np.asarray(t.backward_input_s) for t in times]),
        np.stack([np.asarray(t.backward_weight_s) for t in times]), m, pp, layout.virtual_stages, between_chunks_s(priced),
        overlap=ledger.stack.hides_pipeline, paired_saving_s=saving,
    )  # fmt: skip
    return span if span.ndim else float(span)


def step_s(priced: Priced) -> Num:
    """Seconds of a step: what a search asks for. ``step_parts`` adds up to it, but for rounding."""
    times, longest = chunk_times(priced), span_s(priced)
    end: Num = 0.0
    for index, _ in representatives(priced):
        stage = priced.ledger.stage(index)
        if priced.ledger.layout.pp > 1:
            longest = larger(longest, _busy_s(priced, stage, times))
        end = larger(end, _stage_end(priced, stage, times).step_s)
    return longest + end


def _busy_s(priced: Priced, stage: Stage, times: list[ChunkTime]) -> Num:
    """What ``busy_parts`` adds up to."""
    if priced.ledger.layout.schedule in PAIRED_SCHEDULES:
        return busy_parts(priced, times, stage.index).step_s
    busy: Num = 0.0
    for time, count in _counted([times[chunk.index] for chunk in stage.chunks]):
        busy = busy + count * time.busy_s
    if priced.ledger.layout.pp > 1 and not priced.ledger.stack.hides_pipeline:
        busy = busy + sent_s(priced, stage)
    return priced.ledger.micro_batches * busy


def step_parts(priced: Priced) -> tuple[Parts, Num]:
    """(the parts of a step, the pipeline's bubble fraction)."""
    _, parts, bubble = step_with_parts(priced)
    return parts, bubble


def step_with_parts(priced: Priced) -> tuple[Num, Parts, Num]:
    """(``step_s`` to the last bit, the parts, the pipeline's bubble fraction)."""
    pp, times, span = priced.ledger.layout.pp, chunk_times(priced), span_s(priced)
    parts, most, all_busy = _busiest(priced, times)
    # With one stage the two sums differ by rounding alone.
    parts.bubble_s = larger(span - most, 0.0) if pp > 1 else 0.0
    end = _add_end(parts, priced, times)
    bubble = where(span > 0, larger(1.0 - all_busy / (pp * span), 0.0), 0.0) if pp > 1 else 0.0
    return (larger(span, most) if pp > 1 else span) + end, parts, bubble


def busy_parts(priced: Priced, times: list[ChunkTime], index: int) -> Parts:
    """What one stage computes, exposes and sends before its end of the step."""
    ledger = priced.ledger
    stage, copies = ledger.stage(index), 2 if ledger.layout.schedule == "dualpipe" else 1
    return _stage_parts(priced, stage, [times[chunk.index] for chunk in stage.chunks], ledger.micro_batches / copies)


def _busiest(priced: Priced, times: list[ChunkTime]) -> tuple[Parts, Num, Num]:
    """The parts of the stage that is busy longest, its busy seconds, and those of all stages together."""
    most: Num = -1.0
    parts = Parts()
    all_busy: Num = 0.0
    for index, count in representatives(priced):
        own, busy = busy_parts(priced, times, index), _busy_s(priced, priced.ledger.stage(index), times)
        better = busy > most
        parts = _pick(better, own, parts)
        most = where(better, busy, most)
        all_busy = all_busy + count * busy
    return parts, most, all_busy


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
    pairs = [(getattr(own, name), getattr(other, name)) for name in PART_NAMES]
    return Parts(*(one if not (is_array(one) or is_array(two)) and one == two else np.where(better, one, two) for one, two in pairs))


def _stage_parts(priced: Priced, stage: Stage, times: list[ChunkTime], m: Num) -> Parts:
    parts = Parts()
    for time, count in _counted(times):
        passes = m * count
        parts.compute_s = parts.compute_s + passes * (time.forward.compute_s + time.backward.compute_s)
        parts.recompute_s = parts.recompute_s + passes * time.recompute.compute_s
        for axis in ("tp_s", "cp_s", "ep_s"):
            exposed = getattr(time.forward, axis) + getattr(time.recompute, axis) + getattr(time.backward, axis)
            setattr(parts, axis, getattr(parts, axis) + passes * exposed)
        parts.dp_s = parts.dp_s + passes * (time.forward_dp_all_s + time.backward_dp_all_s)
        parts.other_s = parts.other_s + passes * (time.forward_wait_s + time.backward_wait_s)
    layout = priced.ledger.layout
    if layout.pp > 1 and layout.schedule in PAIRED_SCHEDULES:
        first, second = times
        there, back = pair_counts(layout.schedule, stage.index, layout.pp, priced.ledger.micro_batches)
        saved_s = there * paired_saving_s(priced, first, second) + back * paired_saving_s(priced, second, first)
        for name in ("ep_s", "dp_s", "other_s"):
            part = getattr(parts, name)
            setattr(parts, name, larger(part - saved_s, 0.0))
            saved_s = larger(saved_s - part, 0.0)
    if layout.pp > 1 and not priced.ledger.stack.hides_pipeline:
        parts.pp_s = m * sent_s(priced, stage)
    return parts


def _counted(times: list[ChunkTime]) -> list[tuple[ChunkTime, int]]:
    """Each different chunk time with how often it occurs: equal chunks share one (``chunk_times``)."""
    counts: dict[int, int] = {}
    for time in times:
        counts[id(time)] = counts.get(id(time), 0) + 1
    first = {id(time): time for time in times}
    return [(first[key], count) for key, count in counts.items()]


def _add_end(parts: Parts, priced: Priced, times: list[ChunkTime]) -> Num:
    """Adds what comes after the last backward, on the stage for which it takes longest; the seconds of it."""
    worst: Num = 0.0
    found = Parts()
    for index, _ in priced.ledger.pipeline.representatives:
        own = _stage_end(priced, priced.ledger.stage(index), times)
        total = own.step_s
        better = total > worst
        found = _pick(better, own, found)
        worst = where(better, total, worst)
    for name in PART_NAMES:
        setattr(parts, name, getattr(parts, name) + getattr(found, name))
    return worst


def _stage_end(priced: Priced, stage: Stage, times: list[ChunkTime]) -> Parts:
    """What ``_work_out_end`` says, once for each stage."""
    found: Parts | None = priced.stage_ends.get(stage.index)
    if found is None:
        found = priced.stage_ends[stage.index] = _work_out_end(priced, stage, times)
    return found


def _work_out_end(priced: Priced, stage: Stage, times: list[ChunkTime]) -> Parts:
    """Reductions run one after the other behind the backward of the last micro-batch, each from the end of its layer's backward;
    ZeRO's parameter gather behind the next forward, where the stack does so. Exact for equal layers (timeline/reduction.py): then
    what sticks out is what comes after the first unit's, the last layer's or the last unit's gradient."""
    parts = Parts()
    once = once_per_step(priced, stage, parts)
    reduce_s = once.reduce_s
    if priced.ledger.stack.hides_data_parallel:
        backward_s, beside = (beside_last_weights if weights_last(priced) else beside_last_backward)(priced, stage, times)
        last_s = larger(once.last_s, once.before_last_s + once.last_s - beside * once.beside_last_s)
        reduce_s = larger(last_s, reduce_s - beside * (backward_s - once.before_first_s))
    parts.dp_s = parts.dp_s + reduce_s + exposed_gather_s(priced, stage, times, once)
    parts.other_s = parts.other_s + priced.scalars_s
    return parts


def beside_last_backward(priced: Priced, stage: Stage, times: list[ChunkTime]) -> tuple[Num, Num]:
    """(compute of a stage's last backward, seconds in which its link is free for reductions by second of that compute).

    A backward that waits, for its gathers or for the host, leaves the link to the reductions meanwhile; its own gathers and scatters take
    it where both go over the same one (``Priced.one_link``).
    """
    backward_s: Num = 0.0
    free_s: Num = 0.0
    for time, count in _counted([times[chunk.index] for chunk in stage.chunks]):
        backward_s = backward_s + count * time.backward_s
        free_s = free_s + count * larger(time.backward_span_s - priced.one_link * time.backward_lane_s, 0.0)
    return backward_s, free_s / where(backward_s > 0, backward_s, 1.0)


def weights_last(priced: Priced) -> bool:
    """Whether a stage ends with the weight half of its last backward, which alone hides reductions then."""
    layout: Layout = priced.ledger.layout
    return layout.pp > 1 and layout.schedule in WEIGHTS_LAST


def beside_last_weights(priced: Priced, stage: Stage, times: list[ChunkTime]) -> tuple[Num, Num]:
    """What ``beside_last_backward`` says, of the weight halves alone; the link is free for the same share of their time."""
    backward_s, free = beside_last_backward(priced, stage, times)
    weight_s: Num = 0.0
    spans_s: Num = 0.0
    held_s: Num = 0.0
    for time, count in _counted([times[chunk.index] for chunk in stage.chunks]):
        weight_s = weight_s + count * time.weight_s
        held_s = held_s + count * time.backward_weight_s
        spans_s = spans_s + count * time.backward_span_s
    share = smaller(backward_s * free / where(spans_s > 0, spans_s, 1.0), 1.0)
    return weight_s, held_s * share / where(weight_s > 0, weight_s, 1.0)


def exposed_gather_s(priced: Priced, stage: Stage, times: list[ChunkTime], once: OncePerStep) -> Num:
    """What sticks out of one micro-batch's forward: zero=3:keep's gather before it, and ZeRO's gather after the optimizer, which
    nothing hides unless the stack lets the next step's forward do so."""
    forward_s: Num = 0.0
    for chunk in stage.chunks:
        forward_s = forward_s + times[chunk.index].forward_s
    collect_s = larger(once.collect_s - forward_s, 0.0) if priced.ledger.stack.hides_parameter_gather else once.collect_s
    keep_s = larger(once.keep_s - forward_s, 0.0)
    hidden_s = once.keep_s - keep_s + once.collect_s - collect_s
    return keep_s + collect_s + priced.contention * hidden_s


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

    What nothing can hide goes to ``parts``: sums over tp, of a shared embedding, of copies of stages, of loads; AdamW; and what hidden
    reductions take from the compute beside them.
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
    if priced.ledger.stack.hides_data_parallel:
        parts.dp_s = parts.dp_s + priced.contention * reduce_s
    return OncePerStep(reduce_s, keep_s, collect_s, *_around_reductions(priced, stage))


def _around_reductions(priced: Priced, stage: Stage) -> tuple[Num, Num, Num, Num]:
    """OncePerStep's fields from ``before_first_s`` on."""
    pairs = [pair for chunk in stage.chunks for pair in layer_pairs(priced, chunk)]
    seconds_of = _weight_half_s if weights_last(priced) else _backward_s
    head_s = seconds_of(priced.head) if stage.last else 0.0
    root_s = priced.root(stage.first, stage.last).reduce_s if stage.first or stage.last else 0.0
    if not pairs:
        return 0.0, 0.0, root_s, 0.0
    layer_s = pairs[0][0].reduce_s
    before_first_s = head_s if stage.last and not stage.first else head_s + seconds_of(pairs[-1][1])
    if stage.first:
        return before_first_s, layer_s, root_s, seconds_of(priced.embedding)
    return before_first_s, 0.0, layer_s, 0.0


def _backward_s(block: BlockNumbers) -> Num:
    return block.backward_s


def _weight_half_s(block: BlockNumbers) -> Num:
    return block.backward_weight.total_s
