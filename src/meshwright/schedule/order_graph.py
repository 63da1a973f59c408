"""Who waits for whom: what the order of a schedule fixes before any duration is known.

A computation needs the one before it on its rank and, from another chunk, the one whose result it takes. One order of all
computations in which both come first is found once for each schedule; with it, the times of a step are one pass over columns.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshwright.schedule.actions import COMPUTE_KINDS
from meshwright.schedule.communication import without_communication
from meshwright.schedule.unit_time import stuck

if TYPE_CHECKING:
    from meshwright.schedule.actions import Schedule

__all__ = ["OrderGraph"]

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = map(int, COMPUTE_KINDS)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class OrderGraph:
    """The computations of all ranks as columns, rank by rank, and an order of them in which every input comes before its use.

    Attributes:
        schedule: the computations alone.
        rank, kind, chunk, micro_batch: of each computation; ``kind`` is a schedule.actions.Kind.
        starts: index of each rank's first computation.
        forward, travels: whether it is a forward, and whether its result goes to another rank.
        last_backward: of each rank and stage, the last computation that completes gradients of weights there.
        first_of_pair, second_of_pair: whether it runs as one with the computation behind it, or before it.
        producer: index of the computation on whose result it waits, or -1; the order of its own rank is not in it.
        pass_order: indices in the order of one pass over all. Of a pair the second comes first: its turn is when both may start.
        pass_before, pass_source: in that order, what the own rank does before and whose result is needed: indices, or -1. The result
            of a pair is that of its first, since both end together.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Raises InputError: the order is impossible, some rank waits for ever; names rank, step and action."""
        self.schedule = schedule = without_communication(schedule)
        lengths = [len(actions) for actions in schedule]
        columns = np.array([action for actions in schedule for action in actions], dtype=np.int64).reshape(-1, 4)
        self.rank: Ints = np.repeat(np.arange(schedule.num_ranks), lengths)
        self.kind, self.chunk, self.micro_batch = columns[:, 0], columns[:, 1], columns[:, 2]
        self.first_of_pair: Bools = columns[:, 3] == 1
        self.second_of_pair: Bools = np.concatenate(([False], self.first_of_pair[:-1]))[: len(columns)]
        self.forward: Bools = self.kind == FORWARD
        self.gives_back: Bools = (self.kind == BACKWARD) | (self.kind == BACKWARD_INPUT)
        self.travels = self._travels()
        self.producer, missing = self._producers()
        source = self.producer - (self.second_of_pair[self.producer] & (self.producer >= 0))
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        self.starts: Ints = bounds[:-1]
        order = self._pass_order(bounds.tolist(), source.tolist(), missing.tolist())
        before = self._before(bounds)
        self.pass_order, self.pass_before, self.pass_source = order, before[order].tolist(), source[order].tolist()
        self.pass_order_list: list[int] = order.tolist()

    def _before(self, bounds: Ints) -> Ints:
        """What each computation's own rank does before it, or -1; a pair stands on its second, and what comes after it on its first."""
        before = np.arange(len(self.rank)) - 1
        before[bounds[:-1][np.diff(bounds) > 0]] = -1
        before[(before >= 0) & self.second_of_pair[before]] -= 1
        first = np.flatnonzero(self.first_of_pair)
        before[first + 1] = before[first]
        before[first] = first + 1
        return before

    def _producers(self) -> tuple[Ints, Bools]:
        """For each action, the action on whose result it waits, or -1; and whether it waits for one that there is not."""
        schedule = self.schedule
        chunks, stages = schedule.num_chunks, schedule.num_stages
        forward, backward = self.forward, self.gives_back
        place: Ints = np.full((2, chunks + 1, schedule.num_micro_batches), -1, dtype=np.int64)
        index = np.arange(len(self.kind))
        place[0, self.chunk[forward], self.micro_batch[forward]] = index[forward]
        place[1, self.chunk[backward], self.micro_batch[backward]] = index[backward]
        waits = (forward & (self.chunk % stages != 0)) | (backward & ((self.chunk + 1) % stages != 0))
        neighbour = np.where(forward, self.chunk - 1, self.chunk + 1)
        found = place[backward.astype(np.int64), neighbour, self.micro_batch]
        producer: Ints = np.where(waits, found, -1)
        return producer, waits & (producer < 0)

    def _travels(self) -> Bools:
        """Whether the rank of the next chunk, in the direction of the result, is another one."""
        schedule, chunk = self.schedule, self.chunk
        rank_of_chunk = np.asarray(schedule.rank_of_chunk)
        target = np.where(self.forward, chunk + 1, chunk - 1)
        goes_on = self.forward & ((chunk + 1) % schedule.num_stages != 0) | self.gives_back & (chunk % schedule.num_stages != 0)
        travels: Bools = goes_on & (rank_of_chunk[np.clip(target, 0, schedule.num_chunks - 1)] != self.rank)
        return travels

    @cached_property
    def last_backward(self) -> dict[tuple[int, int], int]:
        completes = np.flatnonzero((self.kind == BACKWARD) | (self.kind == BACKWARD_WEIGHT))
        stages = self.chunk[completes] % self.schedule.num_stages
        return dict(zip(zip(self.rank[completes].tolist(), stages.tolist(), strict=True), completes.tolist(), strict=True))

    def _pass_order(self, bounds: list[int], source: list[int], missing: list[bool]) -> Ints:
        """Each rank runs on until it lacks an input, and again when that is there."""
        position, ends = bounds[:-1], bounds[1:]
        paired = self.first_of_pair.tolist()
        done = [False] * len(source) + [False, True]  # behind all: what there is not, and what needs nothing (index -1)
        source = [len(source) if lacks else need for need, lacks in zip(source, missing, strict=True)]
        order: list[int] = []
        waiting: dict[int, list[int]] = {}
        ready = list(range(len(position)))
        while ready:
            rank = ready.pop()
            i, end = position[rank], ends[rank]
            while i < end:
                lacking = source[i]
                if done[lacking] and paired[i]:
                    lacking = source[i + 1]
                if not done[lacking]:
                    waiting.setdefault(lacking, []).append(rank)
                    break
                if paired[i]:
                    order.append(i + 1)
                order.append(i)
                done[i] = True
                if i in waiting:
                    ready += waiting.pop(i)
                i += 2 if paired[i] else 1
            position[rank] = i
        if len(order) < len(source):
            raise stuck(self.schedule, [reached - start for reached, start in zip(position, bounds, strict=False)])
        return np.array(order, dtype=np.int64)
