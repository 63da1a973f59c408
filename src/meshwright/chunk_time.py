"""One chunk of layers and one micro-batch: seconds of its passes, what sharded parameters expose in them, what the host adds.

The device runs behind the host, which launches kernel after kernel: a pass takes as long as the slower of the two. What a
gather or scatter does not expose still takes a share of its time from the compute that hides it (``contention``).
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.arithmetic import Num, kept, larger, where
from meshwright.ledger.stages import Chunk
from meshwright.priced import BlockNumbers, Cost, Priced, UnitNumbers

PAIRED_SCHEDULES = ("dualpipe", "dualpipe-v")
"""Schedules that run a forward and a backward as one."""


@dataclass
class ChunkTime:
    """One chunk and micro-batch: its passes, and what zero=2 and 3 expose in each; the lanes are all that
    these send in each pass, the ends what no layer of the pass can hide: the first gather, the last scatter, the root; and what the
    host needs to launch each pass."""

    forward: Cost
    recompute: Cost
    backward: Cost
    weight_s: Num
    forward_dp_s: Num
    backward_dp_s: Num
    forward_lane_s: Num
    backward_lane_s: Num
    ends_s: tuple[Num, Num]
    contention: float = 0.0
    host_forward_s: Num = 0.0
    host_backward_s: Num = 0.0

    @kept
    def forward_dp_all_s(self) -> Num:
        """What the gathers cost the forward: what sticks out of them, and what the rest takes from the compute that hides it."""
        return self.forward_dp_s + self.contention * larger(self.forward_lane_s - self.forward_dp_s, 0.0)

    @kept
    def backward_dp_all_s(self) -> Num:
        """The same of the backward."""
        return self.backward_dp_s + self.contention * larger(self.backward_lane_s - self.backward_dp_s, 0.0)

    @kept
    def forward_wait_s(self) -> Num:
        """What the device waits for the host in the forward."""
        return larger(self.host_forward_s - (self.forward.total_s + self.forward_dp_all_s), 0.0)

    @kept
    def weight_wait_s(self) -> Num:
        """The same in the backward's weight half, which has as many kernels as the forward."""
        return larger(self.host_forward_s - self.weight_s, 0.0)

    @kept
    def input_wait_s(self) -> Num:
        """The same in its input half, recomputation included."""
        return larger(self.host_backward_s - self.host_forward_s - (self.backward_s + self.backward_dp_all_s - self.weight_s), 0.0)

    @kept
    def backward_wait_s(self) -> Num:
        return self.weight_wait_s + self.input_wait_s

    @kept
    def backward_weight_s(self) -> Num:
        return self.weight_s + self.weight_wait_s

    @kept
    def forward_s(self) -> Num:
        return self.forward.total_s + self.forward_dp_all_s + self.forward_wait_s

    @kept
    def backward_s(self) -> Num:
        """Without what zero=2 and 3 expose, and without waiting for the host."""
        return self.recompute.total_s + self.backward.total_s

    @kept
    def backward_input_s(self) -> Num:
        return self.backward_s + self.backward_dp_all_s - self.weight_s + self.input_wait_s

    @kept
    def backward_span_s(self) -> Num:
        """The whole backward, with what it waits for."""
        return self.backward_s + self.backward_dp_all_s + self.backward_wait_s

    @kept
    def busy_s(self) -> Num:
        return self.forward_s + self.backward_s + self.backward_dp_all_s + self.backward_wait_s


def paired_savings_s(priced: Priced, times: list[ChunkTime]) -> list[Num]:
    """For each chunk, what its forward saves when it runs as one with a backward of its rank's other chunk; 0 without pairs."""
    layout = priced.ledger.layout
    if layout.pp == 1 or layout.schedule not in PAIRED_SCHEDULES:
        return [0.0] * len(times)
    pairs = list(zip(times, reversed(times), strict=True))
    known = {(id(forward), id(backward)): paired_saving_s(priced, forward, backward) for forward, backward in pairs}
    return [known[id(forward), id(backward)] for forward, backward in pairs]


def paired_saving_s(priced: Priced, forward: ChunkTime, backward: ChunkTime) -> Num:
    """DualPipe: dispatch and combine of each hide behind the rest of the other (arXiv 2412.19437 section 3.2.1).

    Their gathers and scatters hide behind what remains, but for those that no layer hides. Without experts nothing is saved.
    """
    there_s, back_s = forward.forward.total_s, backward.recompute.total_s + backward.backward.total_s
    there_ep_s, back_ep_s = forward.forward.ep_s, backward.recompute.ep_s + backward.backward.ep_s
    pair_s = larger(back_s - back_ep_s, there_ep_s) + larger(there_s - there_ep_s, back_ep_s)
    pair_s = larger(pair_s + forward.ends_s[0] + backward.ends_s[1], forward.forward_lane_s + backward.backward_lane_s)
    pair_s = larger(pair_s, forward.host_forward_s + backward.host_backward_s)
    apart_s = forward.forward_s + backward.backward_s + backward.backward_dp_all_s + backward.backward_wait_s
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
    there: Num = 0.0
    back: Num = 0.0
    for numbers, count in blocks:
        there, back = there + count * numbers.host_forward_s, back + count * numbers.host_backward_s
        forward = forward.plus(numbers.forward, count)
        recompute = recompute.plus(numbers.recompute, count)
        backward = backward.plus(numbers.backward_input, count).plus(numbers.backward_weight, count)
        weight = weight.plus(numbers.backward_weight, count)
    dp = _micro_batch_dp(priced, chunk)
    return ChunkTime(forward, recompute, backward, weight.total_s, *dp, priced.contention, there, back)


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
    if priced.ledger.layout.zero < 2:  # nothing is gathered or scattered in a micro-batch
        return 0.0, 0.0, 0.0, 0.0, (0.0, 0.0)
    hides = priced.ledger.stack.hides_data_parallel
    forward: Num = 0.0
    backward: Num = 0.0
    forward_lane: Num = 0.0
    backward_lane: Num = 0.0
    ends: tuple[Num, Num] = (0.0, 0.0)
    pairs = layer_pairs(priced, chunk)
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
