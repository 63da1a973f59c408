"""Sets of time: sorted, disjoint intervals as arrays of shape [n, 2]."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Intervals = NDArray[np.float64]

__all__ = ["clipped", "covered", "intersection", "length", "of", "subtraction", "union", "within"]


def of(start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> Intervals:
    """The time that spans cover, however they overlap."""
    import numpy as np

    order = np.argsort(start_s, kind="stable")
    start, end = start_s[order], end_s[order]
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return np.zeros((0, 2))
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((start[first], reach[last]), axis=1)


def union(*sets: Intervals) -> Intervals:
    """What any of them covers."""
    import numpy as np

    both = np.concatenate(sets) if sets else np.zeros((0, 2))
    return of(both[:, 0], both[:, 1])


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """What both cover."""
    import numpy as np

    if not len(a) or not len(b):
        return np.zeros((0, 2))
    # Between two neighbouring edges nothing changes; a piece belongs to both sets if its middle does.
    edges = np.unique(np.concatenate((a.ravel(), b.ravel())))
    start, end = edges[:-1], edges[1:]
    middle = (start + end) / 2
    inside = within(middle, a) & within(middle, b)
    return of(start[inside], end[inside])


def subtraction(a: Intervals, b: Intervals) -> Intervals:
    """What ``a`` covers and ``b`` does not."""
    import numpy as np

    if not len(a) or not len(b):
        return a
    edges = np.unique(np.concatenate((a.ravel(), b.ravel())))
    start, end = edges[:-1], edges[1:]
    middle = (start + end) / 2
    inside = within(middle, a) & ~within(middle, b)
    return of(start[inside], end[inside])


def within(moments_s: NDArray[np.float64], a: Intervals) -> NDArray[np.bool_]:
    """Of each moment, whether the set covers it (an interval holds its start and not its end)."""
    import numpy as np

    if not len(a):
        return np.zeros(len(moments_s), dtype=bool)
    place = np.searchsorted(a[:, 0], moments_s, side="right") - 1
    return np.asarray((place >= 0) & (moments_s < a[np.maximum(place, 0), 1]))


def covered(a: Intervals, moments_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds that the set covers up to each moment."""
    import numpy as np

    if not len(a):
        return np.zeros(len(moments_s))
    edges = a.ravel()
    lengths = np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0)
    return np.interp(moments_s, edges, np.concatenate(([0.0], np.cumsum(lengths))))


def clipped(a: Intervals, start_s: float, end_s: float) -> Intervals:
    """The part between two moments."""
    import numpy as np

    cut = np.clip(a, start_s, end_s)
    return np.asarray(cut[cut[:, 1] > cut[:, 0]])


def length(a: Intervals) -> float:
    """Seconds."""
    return float((a[:, 1] - a[:, 0]).sum())
