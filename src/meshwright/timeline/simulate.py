"""When each computation of a pipeline starts and ends: a list of orders, durations, and nothing else.

A computation starts when its rank is free and its input has arrived; a rank never changes its order. So the times are the
longest paths of a graph, and one pass over it, each rank running on until it lacks an input, finds them exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshwright.schedule.actions import Kind
from meshwright.schedule.communication import without_communication
from meshwright.schedule.unit_time import stuck
from meshwright.timeline.events import Timeline

if TYPE_CHECKING:
    from meshwright.schedule.actions import Schedule
    from meshwright.timeline.costs import Costs

__all__ = ["simulate"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """The times of all computations of one step.

    Args:
        schedule: any order, also one read from a file.
        costs: durations in seconds.

    Raises:
        InputError: the order is impossible: some rank waits for ever; names rank, step and action.
    """
    schedule = without_communication(schedule)
    table = _Table(schedule, costs)
    starts, ends = _run(table)
    if np.isnan(starts).any():
        started = np.bincount(table.rank[~np.isnan(starts)], minlength=schedule.num_ranks)
        raise stuck(schedule, started.tolist())
    return Timeline(
        schedule=schedule,
        costs=costs,
        rank=table.rank,
        kind=table.kind,
        chunk=table.chunk,
        micro_batch=table.micro_batch,
        second_of_pair=table.second_of_pair,
        start_s=starts,
        end_s=ends,
        producer=table.producer,
        arrival_s=np.where(table.producer >= 0, ends[table.producer] + table.delay, 0.0),
        held_s=table.held,
    )


class _Table:
    """The actions of all ranks, rank by rank, as columns."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        lengths = [len(actions) for actions in schedule]
        columns = np.array([action for actions in schedule for action in actions], dtype=np.int64).reshape(-1, 4)
        self.rank: Ints = np.repeat(np.arange(schedule.num_ranks), lengths)
        self.kind, self.chunk, self.micro_batch = columns[:, 0], columns[:, 1], columns[:, 2]
        self.first_of_pair = columns[:, 3] == 1
        self.second_of_pair = np.concatenate(([False], self.first_of_pair[:-1]))[: len(columns)]
        self.bounds = np.concatenate(([0], np.cumsum(lengths))).tolist()
        self._find_producers(schedule)
        self._price(schedule, costs)

    def _find_producers(self, schedule: Schedule) -> None:
        """For each action, the action on whose result it waits, or -1; the order of the own rank is not in it."""
        chunks, stages = schedule.num_chunks, schedule.num_stages
        forward = self.kind == Kind.FORWARD
        backward = (self.kind == Kind.BACKWARD) | (self.kind == Kind.BACKWARD_INPUT)
        place: Ints = np.full((2, chunks + 1, schedule.num_micro_batches), -1, dtype=np.int64)
        index = np.arange(len(self.kind))
        place[0, self.chunk[forward], self.micro_batch[forward]] = index[forward]
        place[1, self.chunk[backward], self.micro_batch[backward]] = index[backward]
        self.waits = (forward & (self.chunk % stages != 0)) | (backward & ((self.chunk + 1) % stages != 0))
        neighbour = np.where(forward, self.chunk - 1, self.chunk + 1)
        found = place[backward.astype(np.int64), neighbour, self.micro_batch]
        self.producer: Ints = np.where(self.waits, found, -1)

    def _price(self, schedule: Schedule, costs: Costs) -> None:
        chunk, kind = self.chunk, self.kind
        forward, backward_input, backward_weight = (
            _of_action(values, chunk, self.micro_batch) for values in (costs.forward_s, costs.backward_input_s, costs.backward_weight_s)
        )
        self.duration: Floats = np.choose(
            kind, [forward, backward_input + backward_weight, backward_input, backward_weight]
        )  # fmt: skip
        first = np.flatnonzero(self.first_of_pair)
        self.duration[first] += self.duration[first + 1] - costs.paired_saving_s[chunk[first]]
        self.duration[first + 1] = 0.0

        rank_of_chunk = np.asarray(schedule.rank_of_chunk)
        target = np.where(kind == Kind.FORWARD, chunk + 1, chunk - 1)
        travels = (kind == Kind.FORWARD) & ((chunk + 1) % schedule.num_stages != 0)
        travels |= ((kind == Kind.BACKWARD) | (kind == Kind.BACKWARD_INPUT)) & (chunk % schedule.num_stages != 0)
        travels &= rank_of_chunk[np.clip(target, 0, schedule.num_chunks - 1)] != self.rank
        transfer = np.where(travels, np.where(kind == Kind.FORWARD, costs.forward_transfer_s[chunk], costs.backward_transfer_s[chunk]), 0.0)
        self.delay: Floats = np.where(self.producer >= 0, transfer[self.producer], 0.0)
        self.held: Floats = np.zeros_like(transfer) if costs.overlap else transfer


def _of_action(values: Floats, chunk: Ints, micro_batch: Ints) -> Floats:
    result: Floats = values[chunk] if values.ndim == 1 else values[chunk, micro_batch]
    return result


def _run(table: _Table) -> tuple[Floats, Floats]:
    """Start and end of every action; NaN where it never starts. Plain lists: faster than numpy one element at a time."""
    count = len(table.kind)
    start: list[float] = [float("nan")] * count
    end: list[float] = [-1.0] * count
    duration, delay, held = table.duration.tolist(), table.delay.tolist(), table.held.tolist()
    producer, missing = table.producer.tolist(), (table.waits & (table.producer < 0)).tolist()
    first_of_pair = table.first_of_pair.tolist()
    position, bounds = table.bounds[:-1], table.bounds[1:]
    free = [0.0] * len(position)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(position)))
    while ready:
        rank = ready.pop()
        i, stop, now = position[rank], bounds[rank], free[rank]
        while i < stop:
            size = 2 if first_of_pair[i] else 1
            begin = now
            blocked = -1
            for j in (i, i + 1) if size == 2 else (i,):
                source = producer[j]
                if source >= 0:
                    if end[source] < 0.0:
                        blocked = source
                        break
                    arrival = end[source] + delay[j]
                    if arrival > begin:
                        begin = arrival
                elif missing[j]:
                    blocked = count
                    break
            if blocked >= 0:
                waiting.setdefault(blocked, []).append(rank)
                break
            finish = begin + duration[i]
            now = finish
            for j in range(i, i + size):
                start[j], end[j] = begin, finish
                now += held[j]
                if j in waiting:
                    ready += waiting.pop(j)
            i += size
        position[rank], free[rank] = i, now
    return np.array(start), np.array(end)
