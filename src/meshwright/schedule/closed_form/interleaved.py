"""Interleaved 1F1B: 1F1B's path over several chunks per rank, and the laps between them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import Number, around, column, hops, running_total, total

__all__ = ["interleaved"]

Array = npt.NDArray[np.float64]


def interleaved(f: Array, i: Array, w: Array, t: Array | None, m: Number, p: int, v: int) -> Array:
    """Interleaved 1F1B: (m v + p - 1)(f + b) of a chunk for equal chunks (arXiv 2104.04473 section 2.2.2).

    The path of 1F1B, over rank r's v chunks; ``ahead`` is 2 (p - 1 - r) forwards, of its last chunk and then of its first. On the
    way to the first backward, and after the last, micro-batch 0 goes round all ranks v - 1 times, which can take longer than a
    rank's own p micro-batches (``laps``).
    """
    b = i + w
    f, b = (times.reshape(v, p, *times.shape[1:]) for times in (f, b))
    before, _ = around(f[0] + b[0], None if t is None else t[: p - 1])
    _, behind = around(f[-1] + b[-1], None if t is None else t[1 - p :])
    ahead = column(2 * (p - 1 - np.arange(p)), f[0])
    same = np.minimum(ahead, p - 1)
    ahead = np.where(m > p, ahead, same)
    at_start = np.maximum(0.0, behind - same * f[-1] - (ahead - same) * f[0])
    at_end = np.maximum(0.0, behind - same * b[-1] - (ahead - same) * b[0])
    detours = np.where(m * v > (v - 1) * p + ahead + 1, at_start + at_end, np.maximum(at_start, at_end))
    steady = before + m * (total(f) + total(b)) + detours + _laps(f, t) + _laps(b, t)
    result: Array = steady.max(axis=0)
    return result


def _laps(times: Array, t: Array | None) -> Array:
    """For each rank: what a lap from one of its chunks to its next one takes longer than p micro-batches of its own.

    Turn by turn, so that what is worked on stays in the cache.
    """
    v, p = times.shape[:2]
    messages = None if t is None or len(t) == 1 else hops(t, v * p)
    late: Array = np.zeros_like(times[0])
    passed = running_total(times[0])
    for turn, (own, following) in enumerate(pairwise(times)):
        passed_next = running_total(following)
        around = passed[-1] - (passed - own) + (passed_next - following)
        if messages is not None:
            around += messages[(turn + 1) * p : (turn + 2) * p] - messages[turn * p : (turn + 1) * p]
        elif t is not None:
            around += p * t
        late = late + np.maximum(0.0, around - p * own)
        passed = passed_next
    return late
