"""DualPipe and DualPipe-V: the slowest rank's work, and what filling and draining add to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import others_mean

__all__ = ["dualpipe", "dualpipe_v"]

Array = npt.NDArray[np.float64]
Number = npt.NDArray[Any] | int  # a number, or an array of the batch's shape


def dualpipe(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, saving: Array) -> Array:
    """DualPipe: bubble (p/2 - 1)(F&B + B - 3W) where f = i (arXiv 2412.19437 Table 2); see _paired_extra."""
    work = (f + i + w + (f + i + w)[::-1]) / 2
    f, i, w = (others_mean(times, (times + times[::-1])) for times in (f, i, w))
    around = m * (p - 1) / p + np.maximum(p - 2, 1)
    extra = _paired_extra(f, i, w, t, p // 2, 1) + around * t - (m - p // 2 - 2) * (saving + saving[::-1]) / 2
    result: Array = (m * work + extra).max(axis=0)
    return result


def dualpipe_v(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, saving: Array) -> Array:
    """DualPipe-V: the same on p ranks with 2p chunks, as DualPipe's half: bubble (p - 1)(F&B + B - 3W) of a chunk."""
    work = (f + i + w)[:p] + (f + i + w)[p:][::-1]
    f, i, w = (others_mean(times, times[:p] + times[p:][::-1]) for times in (f, i, w))
    around = np.maximum(2 * m * (p - 1) / p + p - 3, 0)
    extra = _paired_extra(f, i, w, t, p, 2) + around * t - (2 * m - p - 2) * (saving[:p] + saving[p:][::-1]) / 2
    result: Array = (m * work + extra).max(axis=0)
    return result


def _paired_extra(f: Array, i: Array, w: Array, t: Array, half: int, hops: int) -> Array:
    """What filling and draining add to the work, ``half`` ranks from the entrance to the turning point.

    With f = i it is (half - 1)(f + 2 i - w), the paper's (half - 1)(F&B + B - 3W). ``half + 2`` computations of a direction are
    not paired.
    """
    fill = np.maximum(2 * (half - 1) * f, (half - 2) * f + (half - 1) * (i + hops * t))
    drain = (half - 1) * np.maximum(0.0, i - w + t)
    result: Array = fill + drain
    return result
