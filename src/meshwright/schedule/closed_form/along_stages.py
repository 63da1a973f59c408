"""Sums along a pipeline's stages, the stage being the first dim of every array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["around", "column", "others_mean", "running_total", "total"]

Array = npt.NDArray[np.float64]


def around(both: Array, t: Array) -> tuple[Array, Array]:
    """For each stage: the time of all stages before it, and of all behind it, forward and backward, with the messages."""
    upto = running_total(both)
    hops = column(np.arange(len(both)), both) * (2 * t)
    before = upto - both + hops
    behind = upto[-1] - upto + hops[::-1]
    return before, behind


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


def others_mean(times: Array, own: Array) -> Array:
    """For each rank, which has two chunks: the mean of the chunks of all others (what it waits for while the pipeline fills)."""
    result: Array = (total(times) - own) / max(len(times) - 2, 1)
    return result
