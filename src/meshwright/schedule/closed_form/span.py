"""How long a pipeline takes, without simulating it: what the search evaluates by the million.

Every function takes the times of the chunks with the chunk in front (``[chunks, ...]``, model order) and any batch shape behind
it; m may have that batch shape, too. Only ``+ - * /`` and numpy's ufuncs are used, so one layout and an array of layouts give the
same bits. The timeline simulator is exact; these formulas equal it for equal stages and stay close to it for unequal ones (the
tests say how close).

Notation: f, i, w are the seconds of forward, backward-input and backward-weight of a chunk; b = i + w; t of a boundary's message.
A formula is a longest path through the schedule's graph. Its candidates are named by the stage where it spends the steady state.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import Number, mean_hop, total
from meshwright.schedule.closed_form.dualpipe import dualpipe, dualpipe_held, dualpipe_v, dualpipe_v_held
from meshwright.schedule.closed_form.interleaved import interleaved
from meshwright.schedule.closed_form.one_f_one_b import one_f_one_b
from meshwright.schedule.closed_form.zb_v import zb_v, zb_v_held
from meshwright.schedule.closed_form.zero_bubble import zb_h1, zb_h2
from meshwright.spec.layout import TWO_CHUNK_SCHEDULES

__all__ = ["pipeline_span_s"]

Array = npt.NDArray[np.float64]


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
        transfer_s: one message between two chunks: a number, or an array of the batch's shape; or, with as many dims as ``forward_s``,
            one row for each boundary behind a chunk but the last ([p v - 1, ...]), or a single row for all of them. What is said of a
            boundary inside one rank does not count.
        overlap: messages travel while their sender computes; without it the sender is held meanwhile.
        paired_saving_s: what a chunk's forward saves that runs as one with a backward (dualpipe, dualpipe-v); a number, the batch's
            shape, or that of forward_s.

    Raises:
        ValueError: no closed form for this schedule.
    """
    f, i, w = (np.asarray(times, dtype=np.float64) for times in (forward_s, backward_input_s, backward_weight_s))
    t = np.asarray(transfer_s, dtype=np.float64)
    if schedule not in SCHEDULES:
        raise ValueError(f"no closed form for {schedule!r}; one of {', '.join(SCHEDULES)}")
    t = t[np.newaxis] if t.ndim < f.ndim else t
    if p == 1:
        t, overlap = np.zeros_like(t[:1]), True
    if schedule in _ALONG:
        if overlap:
            return _ALONG[schedule](f, i, w, t, m, p, v)
        return _ALONG[schedule](*_with_messages(schedule, f, i, t, p), w, None, m, p, v)
    folded, held, paired = _FOLDED[schedule]
    if schedule in TWO_CHUNK_SCHEDULES and len(t) > 1:
        t = np.delete(t, p - 1, axis=0)  # the turning point of the V: the next chunk is on the same rank
    saving = (np.broadcast_to(np.asarray(paired_saving_s, dtype=np.float64), f.shape),) if paired else ()
    if overlap:
        return folded(f, i, w, t, m, p, *saving)
    with_messages = _with_messages(schedule, f, i, t, p)
    return held(f, i, w, with_messages[0] + with_messages[1] + w, t, m, p, *saving)


def _with_messages(schedule: str, f: Array, i: Array, t: Array, p: int) -> tuple[Array, Array]:
    """Messages that hold their sender are part of its work."""
    f, i = f.copy(), i.copy()
    if schedule in TWO_CHUNK_SCHEDULES:
        first, second = (t[: p - 1], t[p - 1 :]) if len(t) > 1 else (t, t)
        f[: p - 1] += first
        f[p:-1] += second
        i[1:p] += first
        i[p + 1 :] += second
        return f, i
    if schedule == "dualpipe":
        t = (t + t[::-1]) / 2  # each rank has a stage of both copies, which run towards each other
    f[:-1] += t
    i[1:] += t
    return f, i


def _naive(f: Array, i: Array, w: Array, t: Array | None, m: Number, p: int, v: int) -> Array:
    """One micro-batch after the other, through all stages and back."""
    result: Array = m * (total(f + i + w) + _there_and_back(t, p))
    return result


def _gpipe(f: Array, i: Array, w: Array, t: Array | None, m: Number, p: int, v: int) -> Array:
    """Two flow shops of m equal jobs, one after the other: each takes sum + (m - 1) max (arXiv 1811.06965: (m + p - 1) f)."""
    b = i + w
    result: Array = total(f) + total(b) + (m - 1) * (f.max(axis=0) + b.max(axis=0)) + _there_and_back(t, p)
    return result


def _there_and_back(t: Array | None, p: int) -> Array | float:
    """All messages of one micro-batch."""
    return 0.0 if t is None else 2 * (p - 1) * mean_hop(t)


_ALONG: dict[str, Callable[..., Array]] = {
    "naive": _naive,
    "gpipe": _gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-1p": zb_h1,
    "zb-h2": zb_h2,
    "zb-2p": zb_h2,
}
_FOLDED: dict[str, tuple[Callable[..., Array], Callable[..., Array], bool]] = {
    "zb-v": (zb_v, zb_v_held, False),
    "dualpipe": (dualpipe, dualpipe_held, True),
    "dualpipe-v": (dualpipe_v, dualpipe_v_held, True),
}
"""Two chunks per rank: the form where messages overlap, that where they hold their senders, whether forwards run in pairs."""

SCHEDULES = (*_ALONG, *_FOLDED)
