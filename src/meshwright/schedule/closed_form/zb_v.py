"""ZB-V: the slowest rank's work, and what filling and draining add to it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import Number, busiest, mean_hop

__all__ = ["zb_v", "zb_v_held"]

Array = npt.NDArray[np.float64]


def zb_v(f: Array, i: Array, w: Array, t: Array, m: Number, p: int) -> Array:
    """ZB-V: the slowest rank's work, and what filling and draining add: (p - 1) f with f = i = w (zero inside a rank's own window).

    The candidates are the longest paths of the schedule's graph for equal chunks, less that work, read off its critical paths (p from
    2 to 16, m from 1 to 4p, random f, i, w, t). ``short`` is the number of micro-batches that are missing to fill the V, 2p - 1.
    """
    work, f, i, w = busiest(*_by_rank(f, i, w, p))
    if p == 1:
        alone: Array = m * work
        return alone
    t = mean_hop(t)
    short = np.maximum(2 * p - 1 - m, 0)
    d, q = np.minimum(short, p - 1), np.minimum(np.maximum(m - p, 0), p - 1)
    full, filling, begun = short == 0, short <= p - 2, (q > 0) & (2 * q <= p - 1)
    begins = np.minimum(m - 1, p)
    swap = np.maximum(0.0, i + w - f - 2 * t)
    extra = np.maximum.reduce(np.broadcast_arrays(
        (p - 1 + d) * i - d * w + (5 * p - 7 - d) * t,
        (2 * p - 3 - d) * f - (p - 2 - d) * i + (3 * p - 5 - 2 * d) * t,
        (1 + d) * i + (p - 2 - d) * w + (3 * p - 3) * t,
        (1 + d) * f + (p - 2 - d) * w + (3 * p - 5 - 2 * d) * t,
        2 * np.maximum(p - m, 0) * f + 2 * (p - 1) * i - 2 * q * w + (4 * (p - 1) + 2 * np.maximum(q - 1, 0)) * t,
        short * (f + i + 2 * t),
        np.where(full, (2 * p - 2) * f - (p - 1) * i - w + (3 * p - 3) * t, 0.0),
        np.where(full, (p - 1) * f - w + 5 * (p - 1) * t, 0.0),
        np.where(filling, (2 * p - 2 - d) * f + d * i - (2 * p - 1 - 2 * d) * w + 2 * (2 * p - 2 - d) * t + swap, 0.0),
        np.where(filling, (p - 1 - d) * f + (p - 1 + d) * i - (2 * p - 1 - 2 * d) * w + (6 * p - 6 - 2 * d) * t + swap, 0.0),
        np.where(filling, (p - 2 - d) * f + (1 + d) * i + (5 * p - 7 - 2 * d) * t + d * np.maximum(0.0, i - w + t), 0.0),
        (2 * p - 2) * f + 2 * np.maximum(p - m, 0) * i - np.minimum(2 * m - 2, 2 * p - 1) * w + 4 * (p - 1) * t,
        np.where(m > 1, np.maximum(short, p - 1) * (f + i) - np.minimum(2 * m - 3, 2 * p - 1) * w + (4 * p - 6 + 2 * begins) * t, 0.0),
        np.where(m > p, 2 * (p - 1) * i - (2 * p - 1) * w + 6 * (p - 1) * t, 0.0),
        np.where(begun, (p - 1 + q) * f + (p - 1 - 2 * q) * i - q * w + (2 * p - 2) * t, 0.0),
        np.where(begun, 2 * (p - 1 - q) * i + (4 * (p - 1) - 2 * q) * t + q * np.maximum(0.0, f - w + 2 * t), 0.0),
    ))  # fmt: skip
    result: Array = m * work + extra
    return result


def _by_rank(f: Array, i: Array, w: Array, p: int) -> tuple[Array, Array, Array, Array]:
    """Work of each rank for one micro-batch, and its passes: both of its chunks together."""
    f, i, w = (times[:p] + times[p:][::-1] for times in (f, i, w))
    return f + i + w, f, i, w


def zb_v_held(f: Array, i: Array, w: Array, held: Array, t: Array, m: Number, p: int) -> Array:
    """The same where messages hold their senders.

    The ranks at both ends of the V send half as much as the inner ones (one of each rank's two neighbours is itself). So a path that
    stays on an inner rank competes with paths that stay at an end, and each has its own list, read off critical paths as above.

    Args:
        held: each chunk's whole work with its messages, shape as f.
    """
    held = held[:p] + held[p:][::-1]
    work, f, i, w = busiest(held, *_by_rank(f, i, w, p)[1:])
    if p == 1:
        alone: Array = m * work
        return alone
    t = mean_hop(t)
    at_ends = np.maximum(held[0], held[-1])

    inner, ends = _inner_and_ends(m, p)
    result: Array = m * at_ends + _longest(ends, f + t, i + t, w, t)
    if inner:
        result = np.maximum(result, m * work + _longest(inner, f + t, i + t, w, t))
    return result


Candidates = list[tuple[Number, Number, Number, Number, Number | bool]]
"""How many F, I and W a path has beyond the work of its rank, how many messages fewer, and for which m there is such a path."""


def _longest(candidates: Candidates, f: Array, i: Array, w: Array, t: Array) -> Array:
    """Seconds of the longest path."""
    longest: Array = np.zeros_like(f)
    for a, b, c, less, real in candidates:
        if np.any(real):
            seconds = b * i - less * t
            for count, each in ((a, f), (c, w)):
                if not isinstance(count, int) or count:
                    seconds = seconds + count * each
            longest = np.maximum(longest, seconds if np.all(real) else np.where(real, seconds, 0.0))
    return longest


def _inner_and_ends(m: Number, p: int) -> tuple[Candidates, Candidates]:
    """The paths that stay on an inner rank (any rank where m is small), and those that stay at an end."""
    s, q = np.maximum(2 * p - 1 - m, 0), m - p
    c = np.minimum(q, p - 1)
    few, many, some = q <= 0, q >= 1, (q <= 0) & (m >= 4)
    inner: Candidates = [
        (2 * (p - m), 2 * (p - 1), 0, m + 2 + (m <= 2), few),
        (s, s, 0, np.maximum(2 * m + 1, 4), few),
        (s - 1, s + 1, -1, 2, some),
        (s - 2, s + 2, 0, m + 1, some),
        (2 * (p - m) + 1, 2 * p - 3, 0, m + 1, some),
        (s - 1, s, 0, 1, few),
        (2 * (p - m) + 1, 2 * p - 3, -1, 3, few & (m >= 3)),
        (2 * (p - m), 2 * p - 2, -2, 4, few & (m >= 4)),
    ]
    if p == 2:
        both = [(a, b, c, less - 2 * m, real) for a, b, c, less, real in inner]  # no rank is an inner one
        return [], [*both, (0, 1, 0, -1, many), (0, 2, -2, 0, many), (1, 0, 0, 0, many), (1, 1, -2, 1, many)]
    inner += [
        (0, 2 * p - 3, 1 - 2 * c, np.where(q == 1, 5, 3), many),
        (2 * p - 5 - s, s + 2, 1 - 2 * c, 2, q > 1),
        (2 * p - 5 - s, s + 3 - p, 1, 1, many & (2 * p - 5 > s)),
        (2 * p - 5 - s, 2 * s + 3 - p, 1 - s, 1, many & (2 * p - 5 > s)),
        (0, p - 2 + s, 1 - s, 2, many),
        (0, 1 + s, p - 2 - s, 2, many),
        (-1, 2 * p - 2, -2 * c, 5, many),
        (0, 2 * p - 4, 3 - 2 * c, 2, s == 0),
        (p - 2 + q, p - 2 * q, -q, 3 * q + 1, many & (q <= 3)),
        (p - 2, p - 2, 0, 2, q == 1),
        (p - 1 + q, p - 1 - 2 * q, -q, p + 1 + 3 * q, many & (q <= np.maximum((p - 1) / 2, 2))),
        (0, 2 * (p - 1 - q), 0, q + 2, many & (2 * q <= p - 1)),
        (0, 2 * p - 2, -3, 5, q == 1),
        (p - 1, p - 1, -3, 4, q == 1),
        (1, 2 * p - 3, -2, p + 3, q == 1),
        (p - 4 + q, p + 1 - 2 * q, 1 - q, 0, (q > 1) & (2 * q <= p)),
    ]
    ends: Candidates = [
        (0, 2 * p - 2, -2 * c, np.where(q == 1, 2 - p, 3 - 2 * p), many),
        (1, 2 * p - 3, -2 * c, 2 - 2 * p, q > 1),
        (p - 1, p - 1, -2, 1, q == 1),
        (2 * p - 4 - s, s + 2, -2 * c, 2 - 2 * p, q > 1),
        (2 * p - 3 - s, s + 1, -2 * c, 2 - p, q > 1),
        (2 * p - 3 - s, s + 2 - p, 0, 1 - p, many),
        (0, p - 1 + s, -s, 2 - 2 * p, many),
    ]
    return inner, ends
