"""The result of a simulation: every computation with its start and end, as columns, and the figures that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshwright.schedule.actions import Schedule
    from meshwright.timeline.costs import Costs

__all__ = ["Event", "Timeline"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Event(NamedTuple):
    """One computation; ``kind`` is a schedule.actions.Kind as a plain number."""

    rank: int
    kind: int
    chunk: int
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """The columns have one entry per computation: rank 0's in its order, then rank 1's, and so on.

    Attributes:
        second_of_pair: the backward that runs as one with the forward before it: same start and end, counted once.
        producer: index of the computation whose result this one needs from another chunk, or -1.
        arrival_s: when that result was there; 0 without a producer.
        held_s: for how long the rank is held after this computation by its own message (no overlap).
    """

    schedule: Schedule
    costs: Costs
    rank: Ints
    kind: Ints
    chunk: Ints
    micro_batch: Ints
    second_of_pair: Bools
    start_s: Floats
    end_s: Floats
    producer: Ints
    arrival_s: Floats
    held_s: Floats

    def __len__(self) -> int:
        return len(self.rank)

    def __iter__(self) -> Iterator[Event]:
        columns = (self.rank, self.kind, self.chunk, self.micro_batch, self.start_s, self.end_s)
        return map(Event, *(column.tolist() for column in columns))

    @property
    def span_s(self) -> float:
        """From the first computation of any rank to the last."""
        return float(self.end_s.max() - self.start_s.min())

    @cached_property
    def busy_s(self) -> Floats:
        """Shape [p]: how long each rank computes; a pair counts once."""
        once = ~self.second_of_pair
        duration = (self.end_s - self.start_s)[once]
        return np.bincount(self.rank[once], weights=duration, minlength=self.schedule.num_ranks).astype(np.float64)

    @cached_property
    def computed_s(self) -> Floats:
        """Shape [p]: when each rank's last computation, and its message, have ended."""
        result: Floats = np.maximum.reduceat(self.end_s + self.held_s, self.schedule.order_graph.starts)
        return result

    @cached_property
    def sending_s(self) -> Floats:
        """Shape [p]: how long each rank is held by its own messages before the pipeline's last computation ends."""
        held = np.minimum(self.held_s, float(self.end_s.max()) - self.end_s)
        return np.bincount(self.rank, weights=held, minlength=self.schedule.num_ranks).astype(np.float64)

    @property
    def bubble_fraction(self) -> float:
        """Idle time of the p ranks between the pipeline's first and last computation / (p x that span).

        A rank that is held by its own message is not idle.
        """
        used = float(self.busy_s.sum()) + float(self.sending_s.sum())
        return max(1.0 - used / (self.schedule.num_ranks * self.span_s), 0.0)  # where nobody waits, the sum may round up

    @cached_property
    def rank_span_s(self) -> Floats:
        """Shape [p]: from each rank's own first computation to its own last.

        The longest of them is the step time where the optimizer step needs no synchronisation over the stages; the
        zero-bubble paper's "cost" (arXiv 2401.10241 section 4) and bubbles are stated in it.
        """
        first = np.array([self.start_s[self.rank == r].min() for r in range(self.schedule.num_ranks)])
        last = np.array([self.end_s[self.rank == r].max() for r in range(self.schedule.num_ranks)])
        result: Floats = last - first
        return result
