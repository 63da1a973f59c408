"""1F1B: the path that stays on one stage, with its detours, and the one that goes round and round."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import around, column

__all__ = ["one_f_one_b"]

Array = npt.NDArray[np.float64]
Number = npt.NDArray[Any] | int  # a number, or an array of the batch's shape


def one_f_one_b(f: Array, i: Array, w: Array, t: Array, m: Number, p: int, v: int) -> Array:
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
    result: Array = np.maximum(steady.max(axis=0), _round_trips(f + b, before, behind, t, m, p))
    return result


def _round_trips(both: Array, before: Array, behind: Array, t: Array, m: Number, p: int) -> Array:
    """The longest path that crosses boundaries over and over.

    n neighbouring stages take n micro-batches in the time of all their work and 2 (n - 1) messages: with equal stages and
    free messages that is no more than staying on one stage. The neighbours that count are those at one end of the pipeline.
    """
    n = column(1 + np.arange(p), both)
    first, last = before + both, behind + both
    at_own = first + _rounds(first, both, n, t, m)
    at_end = first[-1] + _rounds(last, both[-1], n[::-1], t, m)
    result: Array = np.maximum(at_own.max(axis=0), at_end.max(axis=0))
    return result


def _rounds(one_round: Array, own: Array, n: Array, t: Array, m: Number) -> Array:
    """m - 1 more micro-batches, n in each round; the last, partial round goes over fewer stages, about as long as these."""
    whole = np.floor((m - 1) / n)  # // and % of floats take ten times as long
    rest = m - 1 - whole * n
    usual = np.minimum(own, (one_round - 2 * t * (n - 1)) / n)
    result: Array = whole * one_round + rest * usual + 2 * t * np.maximum(0, rest - 1)
    return result
