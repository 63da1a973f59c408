"""DualPipe and DualPipe-V: the slowest rank's work, and what filling and draining add to it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import Number, busiest, mean_hop

__all__ = ["dualpipe", "dualpipe_held", "dualpipe_v", "dualpipe_v_held"]

Array = npt.NDArray[np.float64]


def dualpipe(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, saving: Array) -> Array:
    """DualPipe: bubble (p/2 - 1)(F&B + B - 3W) where f = i (arXiv 2412.19437 Table 2); see _paired_extra."""
    work, f, i, w = _both_copies(f, i, w, f + i + w, m, p, saving)
    t = mean_hop(t)
    result: Array = work + _paired_extra(f, i, w, t, p // 2, 1) + (m * (p - 1) / p + max(p - 2, 1)) * t
    return result


def dualpipe_held(f: Array, i: Array, w: Array, held: Array, t: Array, m: Number, p: int, saving: Array) -> Array:
    """DualPipe where messages hold their senders; ``held`` is each stage's whole work with its messages. See _held_extra."""
    half = p // 2
    work, f, i, w = _both_copies(f, i, w, held, m, p, saving)
    t = mean_hop(t)
    result: Array = work + (_held_extra(f + t, i + t, w, t, half, [(half + 1, half + 2)], 1) if half > 1 else 0.0)
    return result


def _both_copies(f: Array, i: Array, w: Array, work: Array, m: Number, p: int, saving: Array) -> tuple[Array, ...]:
    """All work of the busiest rank, and the mean passes of the other ranks. Ranks r and p - 1 - r hold the same two stages."""
    half = p // 2
    work, f, i, w, saving = ((times + times[::-1])[:half] for times in (work, f, i, w, saving))
    return busiest((m * work - (m - half - 2) * saving) / 2, f, i, w)


def dualpipe_v(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, saving: Array) -> Array:
    """DualPipe-V: the same on p ranks with 2p chunks, as DualPipe's half: bubble (p - 1)(F&B + B - 3W) of a chunk."""
    work, f, i, w = _both_chunks(f, i, w, f + i + w, m, p, saving)
    t = mean_hop(t)
    result: Array = work + _paired_extra(f, i, w, t, p, 2) + np.maximum(2 * m * (p - 1) / p + p - 3, 0) * t
    return result


def dualpipe_v_held(f: Array, i: Array, w: Array, held: Array, t: Array, m: Number, p: int, saving: Array) -> Array:
    """DualPipe-V where messages hold their senders; ``held`` is each chunk's whole work with its messages. See _held_extra."""
    work, f, i, w = _both_chunks(f, i, w, held, m, p, saving)
    t = mean_hop(t)
    if p == 1:
        return work
    # Two ranks are both ends of the V: then no path stays on an inner rank.
    fewer = [(2, 0)] if p == 2 else [(2 * p + 7, p + 7), (p + 4, p + 5)]
    result: Array = work + _held_extra(f + t, i + t, w, t, p, fewer, min(p - 1, 2))
    return result


def _both_chunks(f: Array, i: Array, w: Array, work: Array, m: Number, p: int, saving: Array) -> tuple[Array, ...]:
    """All work of the busiest rank, and the mean passes of the others' chunks. Rank r holds the chunks r and 2p - 1 - r."""
    work, f, i, w, saving = (times[:p] + times[p:][::-1] for times in (work, f, i, w, saving))
    return busiest(m * work - (2 * m - p - 2) * saving / 2, f, i, w)


def _paired_extra(f: Array, i: Array, w: Array, t: Array, half: int, hops: int) -> Array:
    """What filling and draining add to the work, ``half`` ranks from the entrance to the turning point.

    With f = i it is (half - 1)(f + 2 i - w), the paper's (half - 1)(F&B + B - 3W). ``half + 2`` computations of a direction are
    not paired.
    """
    fill = np.maximum(2 * (half - 1) * f, (half - 2) * f + (half - 1) * (i + hops * t))
    drain = (half - 1) * np.maximum(0.0, i - w + t)
    result: Array = fill + drain
    return result


def _held_extra(f: Array, i: Array, w: Array, t: Array, half: int, fewer: list[tuple[int, int]], fewer_at_end: int) -> Array:
    """The same where f and i hold their rank for a message each, but for those at the ends, which send nothing one way.

    Read off critical paths (half of 1 to 12, random f, i, w, t): ``fewer`` messages of filling forwards, or of filling with input
    halves, than computations; each further entry has one forward less, or one forward for an input half.
    """
    fills = []
    for given_up, (forwards, inputs) in enumerate(fewer):
        fills.append((2 * (half - 1) - given_up) * f - forwards * t)
        fills.append((half - 2 + given_up) * f + (half - 1 - given_up) * i - inputs * t)
    drain = np.maximum(0.0, (half - 1) * (i - w) - fewer_at_end * t)
    result: Array = np.maximum.reduce(fills) + drain
    return result
