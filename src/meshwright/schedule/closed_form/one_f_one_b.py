"""1F1B: the path that stays on one stage, with its detours, and the one that goes round and round."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import Number, around, column, hops

__all__ = ["one_f_one_b"]

Array = npt.NDArray[np.float64]


def one_f_one_b(f: Array, i: Array, w: Array, t: Array | None, m: Number, p: int, v: int) -> Array:
    """1F1B: (m + p - 1)(f + b) for equal stages (arXiv 2104.04473 section 2.2.1).

    A path reaches stage s, spends m micro-batches there and comes back: ``before + m (f + b)``. Instead of the ``ahead``
    forwards between a micro-batch's forward and its backward it can follow that micro-batch to the end of the pipeline and
    back (``behind``), once at the beginning and, in the place of backwards, once at the end.
    Where messages take time, going round the stages 0..s again and again is a second kind of path (``_round_trips``).
    """
    b = i + w
    before, behind = around(f + b, t)
    ahead = np.minimum(column(p - 1 - np.arange(p), f), m - 1)
    at_start = np.maximum(0.0, behind - ahead * f)
    at_end = np.maximum(0.0, behind - ahead * b)
    detours = np.where(m > ahead + 1, at_start + at_end, np.maximum(at_start, at_end))
    steady = before + m * (f + b) + detours
    if t is None:
        longest: Array = steady.max(axis=0)
        return longest
    if len(t) > 1:
        steady[1:] += _to_and_fro(f + b, t, m - 1 - ahead[1:])
    result: Array = np.maximum(steady.max(axis=0), _round_trips(f + b, before, behind, t, m, p))
    return result


def _to_and_fro(both: Array, t: Array, pairs: Array) -> Array:
    """What a path gains that crosses the boundary in front of its stage with every second micro-batch: where one boundary is slower
    than its neighbours, a round over it alone takes longest."""
    result: Array = np.floor(np.maximum(pairs, 0) / 2) * np.maximum(both[:-1] - both[1:] + 2 * t, 0.0)
    return result


def _round_trips(both: Array, before: Array, behind: Array, t: Array, m: Number, p: int) -> Array:
    """The longest path that crosses boundaries over and over.

    n neighbouring stages take n micro-batches in the time of all their work and 2 (n - 1) messages: with equal stages and
    free messages that is no more than staying on one stage. The neighbours that count are those at one end of the pipeline.
    """
    n = column(1 + np.arange(p), both)
    first, last = before + both, behind + both
    there = 2 * hops(t, p)
    back = there[-1] - there
    at_own = first + _rounds(first, both, n, there, 2 * t if len(t) == 1 else there / np.maximum(n - 1, 1), m)
    at_end = first[-1] + _rounds(last, both[-1], n[::-1], back, 2 * t if len(t) == 1 else back / np.maximum(n[::-1] - 1, 1), m)
    result: Array = np.maximum(at_own.max(axis=0), at_end.max(axis=0))
    return result


def _rounds(one_round: Array, own: Array, n: Array, messages: Array, a_stage: Array, m: Number) -> Array:
    """m - 1 more micro-batches, n in each round; the last, partial round goes over fewer stages, about as long as these.

    ``messages`` is that part of a round which they take, ``a_stage`` of it those of one more stage.
    """
    whole = np.floor((m - 1) / n)  # // and % of floats take ten times as long
    rest = m - 1 - whole * n
    usual = np.minimum(own, (one_round - messages) / n)
    result: Array = whole * one_round + rest * usual + a_stage * np.maximum(0, rest - 1)
    return result
