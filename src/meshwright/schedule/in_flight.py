"""How many micro-batches a rank holds at most: the activations that its pipeline schedule needs.

Counted in chunks: a micro-batch's forward on a chunk adds one, the end of its backward (the weight half, where the backward is
split) takes it away. A rank with v chunks needs ``in_flight / v`` times the activations of one micro-batch on all its chunks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.schedule.actions import Kind, Schedule

__all__ = ["count_in_flight", "in_flight_chunks"]

Number = Any  # an integer, or an array of them


def in_flight_chunks(schedule: str, rank: Number, p: Number, v: Number, m: Number) -> Any:
    """The most chunk activations that a pipeline rank holds at once.

    Args:
        schedule: a schedule's word in a layout.
        rank: pipeline rank from 0; like p, v and m an integer or an array.
        p: pipeline ranks.
        v: chunks per rank.
        m: micro-batches.

    Raises:
        ValueError: no formula for this schedule.

    Sources: 1f1b and interleaved arXiv 2104.04473 section 2.2 (interleaved is v times arXiv 2205.05198's 1 + (p-1)/(p v) of p
    micro-batches on the first rank); zb arXiv 2401.10241 Table 2 and section 3 (zb-1p, zb-2p: the limit that they are built for);
    zb-v arXiv 2405.15362; dualpipe arXiv 2412.19437 Table 2 (PP + 1).
    """
    if schedule == "naive":
        return np.minimum(1, m + 0 * rank)
    if schedule == "gpipe":
        return m + 0 * rank
    if schedule == "1f1b":
        return np.minimum(p - rank, m)
    if schedule == "interleaved":
        return np.minimum(2 * (p - 1 - rank) + (v - 1) * p + 1, m * v)
    if schedule in ("zb-h1", "zb-1p"):
        return np.minimum(p, m + 0 * rank)
    if schedule == "zb-h2":
        return np.minimum(2 * p - 1, m + 0 * rank)
    if schedule == "zb-2p":
        return np.minimum(2 * p, m + 0 * rank)
    if schedule == "zb-v":
        return np.minimum(2 * p - 1 - rank, m) + np.minimum(rank + 1, m)
    if schedule == "dualpipe":
        return p + 1 + 0 * rank
    if schedule == "dualpipe-v":
        return 2 * p + 1 + 0 * rank
    raise ValueError(f"no in-flight formula for {schedule!r}")


def count_in_flight(schedule: Schedule) -> npt.NDArray[np.int64]:
    """Shape [p]: the most chunk activations that each rank holds at once, counted from the lists."""
    peaks = [int(held_chunks(schedule, rank).max(initial=0)) for rank in range(schedule.num_ranks)]
    return np.array(peaks, dtype=np.int64)


def held_chunks(schedule: Schedule, rank: int) -> npt.NDArray[np.int64]:
    """Chunk activations that the rank holds during each of its actions (while a backward runs, its own is still there)."""
    kinds = np.array([action.kind for action in schedule.actions[rank]], dtype=np.int64)
    freed = (kinds == Kind.BACKWARD) | (kinds == Kind.BACKWARD_WEIGHT)
    before: npt.NDArray[np.int64] = np.cumsum(np.where(kinds == Kind.FORWARD, 1, 0)) - np.cumsum(freed) + freed
    return before
