"""How long a pipeline takes, without simulating it: what the search evaluates by the million.

Every function takes the times of the chunks with the chunk in front (``[chunks, ...]``, model order) and any batch shape behind
it; m may have that batch shape, too. Only ``+ - * /`` and numpy's ufuncs are used, so one layout and an array of layouts give the
same bits. The timeline simulator is exact; these formulas equal it for equal stages and stay close to it for unequal ones (the
tests say how close).

Notation: f, i, w are the seconds of forward, backward-input and backward-weight of a chunk; b = i + w; t of a boundary's message.
A formula is a longest path through the schedule's graph. Its candidates are named by the stage where it spends the steady state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.spec.layout import TWO_CHUNK_SCHEDULES

__all__ = ["pipeline_span_s"]

Array = npt.NDArray[np.float64]
Number = Any  # a number, or an array of the batch's shape


def pipeline_span_s(
    schedule: str,
    forward_s: npt.ArrayLike,
    backward_input_s: npt.ArrayLike,
    backward_weight_s: npt.ArrayLike,
    m: Number,
    p: int,
    v: int = 1,
    transfer_s: npt.ArrayLike = 0.0,
    overlap: bool = True,
    paired_saving_s: npt.ArrayLike = 0.0,
) -> Array:
    """Seconds from the first computation of any rank to the last one of any rank.

    Args:
        schedule: a schedule's word in a layout.
        forward_s: shape [p v, ...]: the forward of one micro-batch on each chunk, in model order.
        backward_input_s: same shape.
        backward_weight_s: same shape; a whole backward is the sum of the two.
        m: micro-batches.
        p: pipeline ranks.
        v: chunks per rank.
        transfer_s: one message between two chunks: a number, or an array of the batch's shape.
        overlap: messages travel while their sender computes; without it the sender is held meanwhile.
        paired_saving_s: what a forward and a backward that run as one save (dualpipe, dualpipe-v); a number or the batch's shape.

    Raises:
        ValueError: no closed form for this schedule.
    """
    f, i, w = (np.asarray(times, dtype=np.float64) for times in (forward_s, backward_input_s, backward_weight_s))
    t = np.asarray(transfer_s, dtype=np.float64)
    if schedule not in _SPANS and schedule not in _PAIRED:
        raise ValueError(f"no closed form for {schedule!r}; one of {', '.join((*_SPANS, *_PAIRED))}")
    if p == 1:
        t = np.zeros_like(t)
    if not overlap:
        f, i, t = _held(schedule, f, i, t, p)
    if schedule in _PAIRED:
        return _PAIRED[schedule](f, i, w, t, m, p, np.asarray(paired_saving_s, dtype=np.float64))
    return _SPANS[schedule](f, i, w, t, m, p, v)


def _held(schedule: str, f: Array, i: Array, t: Array, p: int) -> tuple[Array, Array, Array]:
    """Messages that hold their sender are part of its work; nothing then remains to wait for."""
    f = f + t
    i = i + t
    f[-1] -= t
    i[0] -= t
    if schedule in TWO_CHUNK_SCHEDULES:
        f[p - 1] -= t  # the turning point of the V: the next chunk is on the same rank
        i[p] -= t
    return f, i, np.zeros_like(t)


def _naive(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """One micro-batch after the other, through all stages and back."""
    result: Array = m * (_total(f + i + w) + 2 * (p - 1) * t)
    return result


def _gpipe(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """Two flow shops of m equal jobs, one after the other: each takes sum + (m - 1) max (arXiv 1811.06965: (m + p - 1) f)."""
    b = i + w
    result: Array = _total(f) + _total(b) + (m - 1) * (f.max(axis=0) + b.max(axis=0)) + 2 * (p - 1) * t
    return result


def _one_f_one_b(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """1F1B: (m + p - 1)(f + b) for equal stages (arXiv 2104.04473 section 2.2.1).

    A path reaches stage s, spends m micro-batches there and comes back: ``before + m (f + b)``. Instead of the ``ahead``
    forwards between a micro-batch's forward and its backward it can follow that micro-batch to the end of the pipeline and
    back (``behind``), once at the beginning and, in the place of backwards, once at the end.
    Where messages take time, going round the stages 0..s again and again is a second kind of path (``_round_trips``).
    """
    b = i + w
    before, behind = _around(f + b, t)
    ahead = np.minimum(_column(p - 1 - np.arange(p), f), m - 1)
    at_start = np.maximum(0.0, behind - ahead * f)
    at_end = np.maximum(0.0, behind - ahead * b)
    detours = np.where(m > ahead + 1, at_start + at_end, np.maximum(at_start, at_end))
    steady = before + m * (f + b) + detours
    return np.maximum(steady.max(axis=0), _round_trips(f + b, before, behind, t, m, p))


def _round_trips(both: Array, before: Array, behind: Array, t: Array, m: Number, p: int) -> Array:
    """The longest path that crosses boundaries over and over.

    n neighbouring stages take n micro-batches in the time of all their work and 2 (n - 1) messages: with equal stages and
    free messages that is no more than staying on one stage. The neighbours that count are those at one end of the pipeline.
    """
    n = _column(1 + np.arange(p), both)
    first, last = before + both, behind + both
    at_own = first + _rounds(first, both, n, t, m)
    at_end = first[-1] + _rounds(last, both[-1], n[::-1], t, m)
    return np.maximum(at_own.max(axis=0), at_end.max(axis=0))


def _rounds(one_round: Array, own: Array, n: Array, t: Array, m: Number) -> Array:
    """m - 1 more micro-batches, n in each round; the last, partial round goes over fewer stages, about as long as these."""
    rest = (m - 1) % n
    usual = np.minimum(own, (one_round - 2 * t * (n - 1)) / n)
    result: Array = (m - 1) // n * one_round + rest * usual + 2 * t * np.maximum(0, rest - 1)
    return result


def _interleaved(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """Interleaved 1F1B: (m v + p - 1)(f + b) of a chunk for equal chunks (arXiv 2104.04473 section 2.2.2).

    The path of 1F1B, over rank r's v chunks; ``ahead`` is 2 (p - 1 - r) forwards, of its last chunk and then of its first. On the
    way to the first backward, and after the last, micro-batch 0 goes round all ranks v - 1 times, which can take longer than a
    rank's own p micro-batches (``laps``).
    """
    b = i + w
    f, b = (times.reshape(v, p, *times.shape[1:]) for times in (f, b))
    before, _ = _around(f[0] + b[0], t)
    _, behind = _around(f[-1] + b[-1], t)
    ahead = _column(2 * (p - 1 - np.arange(p)), f[0])
    same = np.minimum(ahead, p - 1)
    ahead = np.where(m > p, ahead, same)
    at_start = np.maximum(0.0, behind - same * f[-1] - (ahead - same) * f[0])
    at_end = np.maximum(0.0, behind - same * b[-1] - (ahead - same) * b[0])
    detours = np.where(m * v > (v - 1) * p + ahead + 1, at_start + at_end, np.maximum(at_start, at_end))
    steady = before + m * _total(f + b) + detours + _laps(f, t, p) + _laps(b, t, p)
    result: Array = steady.max(axis=0)
    return result


def _laps(times: Array, t: Array, p: int) -> Array:
    """For each rank: what a lap from one of its chunks to its next one takes longer than p micro-batches of its own."""
    passed = np.cumsum(times, axis=1)
    before = passed - times
    around = passed[:-1, -1:] - before[:-1] + before[1:] + p * t
    return _total(np.maximum(0.0, around - p * times[:-1]))


def _zb_h1(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """ZB-H1: m (f + i + w) + (p - 1)(f + i - w) for equal stages (arXiv 2401.10241 Table 2, w <= i)."""
    return _split_backward(f, i, w, t, m, p, reach=1)


def _zb_h2(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """ZB-H2, and ZB-2p, which is never slower: the paper's m (f + i + w) + (p - 1)(f + i - 2 w), from rank 0's start to its end.

    Counted from the first start of any rank to the last end of any rank it is longer where the last rank, which starts (p - 1) f
    later, ends as late as rank 0 does.
    """
    return _split_backward(f, i, w, t, m, p, reach=2)


def _split_backward(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, reach: int) -> Array:
    """A path reaches stage s, stays until its last input half, goes up to a stage j <= s and does the weight halves left there.

    ``lag`` weight halves are left behind the last input half, besides its own. The detours are those of 1F1B: the way of the
    first micro-batch to the end and back instead of the forwards before its backward, and that of the last one. Until the lag is
    built up ZB-H1 runs like 1F1B, and like it goes over the boundaries once per micro-batch (_round_trips); ZB-H2 is far enough
    ahead not to.
    """
    stage = _column(np.arange(p), f)
    lag = np.minimum(reach * stage, m)
    early = np.maximum(m - 1 - lag, 0)
    left = np.minimum(lag + 1, m)
    before = np.cumsum(f + t, axis=0) - f - t
    _, behind = _around(f + i, t)
    ahead = np.minimum(reach * (p - 1 - stage), m - 1)
    at_start = np.maximum(0.0, behind - ahead * f)
    at_end = np.maximum(0.0, behind - ahead * (i + w))
    detours = np.where(m > ahead + 1, at_start + at_end, np.maximum(at_start, at_end))
    upward = np.cumsum(i + t, axis=0) - i - t
    ending = upward + np.maximum.accumulate(left * w - upward, axis=0)
    trips = 2 * t * lag if reach == 1 else 0.0 * lag
    return (before + m * (f + i) + early * w + trips + detours + ending).max(axis=0)


def _zb_v(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """ZB-V: the slowest rank's work, and what filling and draining add: (p - 1) f with f = i = w (zero inside a rank's own window).

    The candidates are the longest paths of the schedule's graph for equal chunks, counted from its critical paths with m >= 2p - 1.
    With fewer micro-batches the holes of those that are missing remain.
    """
    work = (f + i + w)[:p] + (f + i + w)[p:][::-1]
    f, i, w = (_total(times) / (2 * p) for times in (f, i, w))
    if p == 1:
        result: Array = m * work[0]
        return result
    m_full = np.maximum(m, 2 * p - 1)
    extra = np.maximum.reduce(
        [
            (p - 1) * i + (5 * p - 7) * t,
            (2 * p - 3) * f - (p - 2) * i + (3 * p - 5) * t,
            i + (p - 2) * w + (3 * p - 3) * t,
            f + (p - 2) * w + (3 * p - 5) * t,
            2 * (p - 1) * (i - w) + (6 * p - 8) * t,
            (2 * p - 2) * f - (p - 1) * i - w + (3 * p - 3) * t,
        ]
    )
    return m * work.max(axis=0) + extra


def _dualpipe(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, saving: Array) -> Array:
    """DualPipe: bubble (p/2 - 1)(F&B + B - 3W) where f = i (arXiv 2412.19437 Table 2); see _paired_span."""
    work = (f + i + w + (f + i + w)[::-1]) / 2
    f, i, w = (_total(times) / p for times in (f, i, w))
    around = m * (p - 1) / p + np.maximum(p - 2, 1)
    return m * work.max(axis=0) + _paired_extra(f, i, w, t, p // 2, 1) + around * t - (m - p // 2 - 2) * saving


def _dualpipe_v(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, saving: Array) -> Array:
    """DualPipe-V: the same on p ranks with 2p chunks, as DualPipe's half: bubble (p - 1)(F&B + B - 3W) of a chunk."""
    work = (f + i + w)[:p] + (f + i + w)[p:][::-1]
    f, i, w = (_total(times) / (2 * p) for times in (f, i, w))
    around = np.maximum(2 * m * (p - 1) / p + p - 3, 0)
    return m * work.max(axis=0) + _paired_extra(f, i, w, t, p, 2) + around * t - (2 * m - p - 2) * saving


def _paired_extra(f: Array, i: Array, w: Array, t: Array, half: int, hops: int) -> Array:
    """What filling and draining add to the work, ``half`` ranks from the entrance to the turning point.

    With f = i it is (half - 1)(f + 2 i - w), the paper's (half - 1)(F&B + B - 3W). ``half + 2`` computations of a direction are
    not paired.
    """
    fill = np.maximum(2 * (half - 1) * f, (half - 2) * f + (half - 1) * (i + hops * t))
    drain = (half - 1) * np.maximum(0.0, i - w + t)
    result: Array = fill + drain
    return result


def _around(both: Array, t: Array) -> tuple[Array, Array]:
    """For each stage: the time of all stages before it, and of all behind it, forward and backward, with the messages."""
    upto = np.cumsum(both, axis=0)
    hops = _column(np.arange(len(both)), both) * (2 * t)
    before = upto - both + hops
    behind = upto[-1] - upto + hops[::-1]
    return before, behind


def _column(values: npt.NDArray[Any], like: Array) -> Array:
    """One value per stage, ready to meet arrays with a batch behind the stage."""
    return values.reshape(-1, *(1,) * (like.ndim - 1)).astype(np.float64)


def _total(times: Array) -> Array:
    """Sum over the first dim in its order; np.sum's order, and so its last bit, would depend on the batch behind it."""
    if not len(times):
        return np.zeros(times.shape[1:])
    result: Array = np.cumsum(times, axis=0)[-1]
    return result


_SPANS = {
    "naive": _naive,
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "zb-h1": _zb_h1,
    "zb-1p": _zb_h1,
    "zb-h2": _zb_h2,
    "zb-2p": _zb_h2,
    "zb-v": _zb_v,
}
_PAIRED = {"dualpipe": _dualpipe, "dualpipe-v": _dualpipe_v}
