"""Activations that a pipeline rank holds over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.schedule.actions import Kind

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline

__all__ = ["Memory", "activation_memory"]


class Memory(NamedTuple):
    """A staircase: ``held_bytes[i]`` from ``time_s[i]`` on."""

    time_s: npt.NDArray[np.float64]
    held_bytes: npt.NDArray[np.float64]

    @property
    def peak_bytes(self) -> float:
        return float(self.held_bytes.max(initial=0.0))


def activation_memory(
    timeline: Timeline, rank: int, saved_bytes: npt.ArrayLike = 1.0, weight_share: float = 1.0
) -> Memory:  # fmt: skip
    """What a rank's forwards have saved and its backwards not yet released.

    Memory is taken when a forward starts and released when the backward ends; where the backward is split, what the weight half
    does not need goes with the input half.

    Args:
        timeline: a simulated step.
        rank: pipeline rank.
        saved_bytes: per micro-batch, one number or shape [chunks]; 1 counts micro-batches in flight.
        weight_share: the part of it that the weight half needs.
    """
    saved = np.broadcast_to(np.asarray(saved_bytes, dtype=np.float64), (timeline.schedule.num_chunks,))
    mine = np.flatnonzero(timeline.rank == rank)
    kind, size = timeline.kind[mine], saved[timeline.chunk[mine]]
    change = np.select(
        [kind == Kind.FORWARD, kind == Kind.BACKWARD, kind == Kind.BACKWARD_INPUT],
        [size, -size, -size * (1.0 - weight_share)],
        -size * weight_share,
    )
    time = np.where(kind == Kind.FORWARD, timeline.start_s[mine], timeline.end_s[mine])
    order = np.lexsort((np.where(change > 0, 1, 0), time))  # at the same moment, release before taking
    return Memory(time[order], np.cumsum(change[order]))
