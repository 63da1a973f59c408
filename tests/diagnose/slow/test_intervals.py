"""Sets of time against sets of points: on whole numbers, a piece between two neighbours is either in or out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.diagnose.slow import intervals

SPAN = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
SPANS = st.lists(SPAN, max_size=12)


def of(spans: list[tuple[int, int]]) -> np.ndarray:
    both = np.array(spans, dtype=float).reshape(-1, 2)
    return intervals.of(both[:, 0], both[:, 1])


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {point for start, end in spans for point in range(start, end)}


def points_of(found: np.ndarray) -> set[int]:
    return points([(int(start), int(end)) for start, end in found])


@given(SPANS)
def test_what_spans_cover(spans: list[tuple[int, int]]) -> None:
    found = of(spans)
    assert points_of(found) == points(spans) and intervals.length(found) == len(points(spans))
    assert (found[1:, 0] > found[:-1, 1]).all()  # sorted, and no two that touch


@given(SPANS, SPANS)
def test_operations_on_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert points_of(intervals.union(of(a), of(b))) == points(a) | points(b)
    assert points_of(intervals.intersection(of(a), of(b))) == points(a) & points(b)
    assert points_of(intervals.subtraction(of(a), of(b))) == points(a) - points(b)


@given(SPANS, st.integers(0, 50), st.integers(0, 50))
def test_clipping_and_covering(spans: list[tuple[int, int]], start: int, end: int) -> None:
    assert points_of(intervals.clipped(of(spans), start, max(start, end))) == {p for p in points(spans) if start <= p < max(start, end)}
    assert intervals.covered(of(spans), np.array([start]))[0] == len({p for p in points(spans) if p < start})
    assert intervals.within(np.array([start + 0.5]), of(spans))[0] == (start in points(spans))
