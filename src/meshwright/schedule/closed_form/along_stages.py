"""Sums along a pipeline's stages, the stage (or the boundary behind it) being the first dim of every array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Number", "around", "busiest", "column", "hops", "mean_hop", "running_total", "total"]

Array = npt.NDArray[np.float64]
Number = npt.NDArray[Any] | int  # a number, or an array of the batch's shape


def around(both: Array, t: Array | None) -> tuple[Array, Array]:
    """For each stage: the time of all stages before it, and of all behind it, forward and backward, with the messages.

    ``t`` is None where messages are free, here as everywhere below.
    """
    upto = running_total(both)
    before, behind = upto - both, upto[-1] - upto
    if t is not None:
        messages = hops(2 * t, len(both))
        before += messages
        behind += messages[-1] - messages
    return before, behind


def hops(t: Array, stages: int) -> Array:
    """For each stage, the messages on the way to it from the first one.

    ``t`` has a row for each boundary, or one row where all boundaries are alike.
    """
    if len(t) == 1:
        return column(np.arange(stages), t) * t
    result = np.zeros((stages, *t.shape[1:]))
    result[1:] = running_total(t[: stages - 1])
    return result


def mean_hop(t: Array) -> Array:
    """The mean message."""
    result: Array = total(t) / len(t) if len(t) > 1 else t[0]
    return result


def column(values: npt.NDArray[Any], like: Array) -> Array:
    """One value per stage, ready to meet arrays with a batch behind the stage."""
    return values.reshape(-1, *(1,) * (like.ndim - 1)).astype(np.float64)


def total(times: Array) -> Array:
    """Sum over the first dim, row after row: np.sum's order, and so its last bit, would depend on the batch behind it."""
    if not len(times):
        return np.zeros(times.shape[1:])
    sum_so_far: Array = times[0]
    for row in times[1:]:
        sum_so_far = sum_so_far + row
    return sum_so_far


def running_total(times: Array) -> Array:
    """Sum of each row and all before it. np.cumsum's numbers, ten times as fast: it goes down the columns, this along the rows."""
    sums = np.empty_like(times)
    sums[:1] = times[:1]
    for index in range(1, len(times)):
        np.add(sums[index - 1 : index], times[index : index + 1], out=sums[index : index + 1])
    return sums


def busiest(work: Array, *passes: Array) -> tuple[Array, ...]:
    """The work of the rank that has most, and for each pass its mean over the chunks of all other ranks, two chunks a rank.

    Args:
        work: shape [p, ...].
        passes: both chunks of each rank together, shape [p, ...].
    """
    rank = work.argmax(axis=0)[np.newaxis]
    chosen = [np.take_along_axis(work, rank, axis=0)[0]]
    for times in passes:
        own = np.take_along_axis(times, rank, axis=0)[0]
        chosen.append((total(times) - own) / max(2 * len(times) - 2, 1))
    return tuple(chosen)
