"""The schedules that split the backward: ZB-H1, ZB-H2 (and the automatic ones of the same memory), ZB-V."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import around, column, others_mean, running_total

__all__ = ["zb_h1", "zb_h2", "zb_v"]

Array = npt.NDArray[np.float64]
Number = npt.NDArray[Any] | int  # a number, or an array of the batch's shape


def zb_h1(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """ZB-H1: m (f + i + w) + (p - 1)(f + i - w) for equal stages (arXiv 2401.10241 Table 2, w <= i)."""
    return _split_backward(f, i, w, t, m, p, reach=1)


def zb_h2(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """ZB-H2, and about ZB-2p, whose greedy order is close.

    From rank 0's start to its end it is the paper's m (f + i + w) + (p - 1)(f + i - 2 w) (arXiv 2401.10241 Table 2). Counted from
    the first start of any rank to the last end of any rank it is longer where the last rank, which starts (p - 1) f later, ends as
    late as rank 0 does.
    """
    return _split_backward(f, i, w, t, m, p, reach=2)


def _split_backward(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, reach: int) -> Array:
    """A path reaches stage s, stays until its last input half, goes up to a stage j <= s and does the weight halves left there.

    ``lag`` weight halves are left behind the last input half, besides its own. The detours are those of 1F1B: the way of the
    first micro-batch to the end and back instead of the forwards before its backward, and that of the last one. Until the lag is
    built up ZB-H1 runs like 1F1B, and like it goes over the boundaries once per micro-batch (_round_trips); ZB-H2 is far enough
    ahead not to.
    """
    stage = column(np.arange(p), f)
    lag = np.minimum(reach * stage, m)
    early = np.maximum(m - 1 - lag, 0)
    left = np.minimum(lag + 1, m)
    before = running_total(f + t) - f - t
    _, behind = around(f + i, t)
    ahead = np.minimum(reach * (p - 1 - stage), m - 1)
    at_start = np.maximum(0.0, behind - ahead * f)
    at_end = np.maximum(0.0, behind - ahead * (i + w))
    detours = np.where(m > ahead + 1, at_start + at_end, np.maximum(at_start, at_end))
    upward = running_total(i + t) - i - t
    ending = upward + np.maximum.accumulate(left * w - upward, axis=0)
    trips = 2 * t * np.minimum(lag, np.maximum(m - 2, 0)) if reach == 1 else 0.0 * lag
    result: Array = (before + m * (f + i) + early * w + trips + detours + ending).max(axis=0)
    return result


def zb_v(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """ZB-V: the slowest rank's work, and what filling and draining add: (p - 1) f with f = i = w (zero inside a rank's own window).

    The candidates are the longest paths of the schedule's graph for equal chunks, read off its critical paths (p from 2 to 8, m from
    1 to 6p, 150 random f, i, w each). ``short`` is the number of micro-batches that are missing to fill the V, 2p - 1.
    """
    work = (f + i + w)[:p] + (f + i + w)[p:][::-1]
    f, i, w = (others_mean(times, times[:p] + times[p:][::-1]) for times in (f, i, w))
    if p == 1:
        alone: Array = m * work[0]
        return alone
    short = np.maximum(2 * p - 1 - m, 0)
    above = np.minimum(np.maximum(m - p, 0), p - 1)
    d = np.minimum(short, p - 1)
    extra = np.maximum.reduce(
        [
            (p - 1 + d) * i - d * w + (5 * p - 7 - d) * t,
            (2 * p - 3 - d) * f - (p - 2 - d) * i + (3 * p - 5 - 2 * d) * t,
            (1 + d) * i + (p - 2 - d) * w + (3 * p - 3) * t,
            (1 + d) * f + (p - 2 - d) * w + (3 * p - 5 - 2 * d) * t,
            2 * np.maximum(p - m, 0) * f + 2 * (p - 1) * i - 2 * above * w + (4 * (p - 1) + 2 * np.maximum(above - 1, 0)) * t,
            short * (f + i + 2 * t),
            np.where(d > 0, 0.0, (2 * p - 2) * f - (p - 1) * i - w + (3 * p - 3) * t),
        ]
    )
    result: Array = (m * work + extra).max(axis=0)
    return result
