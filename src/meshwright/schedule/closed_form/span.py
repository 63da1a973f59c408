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

from meshwright.schedule.closed_form.along_stages import total
from meshwright.schedule.closed_form.dualpipe import dualpipe, dualpipe_v
from meshwright.schedule.closed_form.interleaved import interleaved
from meshwright.schedule.closed_form.one_f_one_b import one_f_one_b
from meshwright.schedule.closed_form.zero_bubble import zb_h1, zb_h2, zb_v
from meshwright.spec.layout import TWO_CHUNK_SCHEDULES

__all__ = ["pipeline_span_s"]

Array = npt.NDArray[np.float64]
Number = npt.NDArray[Any] | int  # a number, or an array of the batch's shape


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
        paired_saving_s: what a chunk's forward saves that runs as one with a backward (dualpipe, dualpipe-v); a number, the batch's
            shape, or that of forward_s.

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
        return _PAIRED[schedule](f, i, w, t, m, p, np.broadcast_to(np.asarray(paired_saving_s, dtype=np.float64), f.shape))
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
    result: Array = m * (total(f + i + w) + 2 * (p - 1) * t)
    return result


def _gpipe(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
    """Two flow shops of m equal jobs, one after the other: each takes sum + (m - 1) max (arXiv 1811.06965: (m + p - 1) f)."""
    b = i + w
    result: Array = total(f) + total(b) + (m - 1) * (f.max(axis=0) + b.max(axis=0)) + 2 * (p - 1) * t
    return result


_SPANS = {
    "naive": _naive,
    "gpipe": _gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-1p": zb_h1,
    "zb-h2": zb_h2,
    "zb-2p": zb_h2,
    "zb-v": zb_v,
}
_PAIRED = {"dualpipe": dualpipe, "dualpipe-v": dualpipe_v}
