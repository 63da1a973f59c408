"""Order what fits: the fastest, the fastest under a condition, and the front of time against memory.

Segments are visited by their fastest layout, so that a question about the best ones looks at a few of them only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.search.evaluate import Segment
from meshwright.search.space import Column
from meshwright.spec.layout import Layout

FRONT_BINS = 256
"""Steps of memory that the Pareto front tells apart, up to the most that any layout takes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that fits, with what the search knows of it."""

    layout: Layout
    step_s: float
    peak_bytes: float


Row = tuple[float, float, Segment, int]
"""Step seconds, peak bytes, and where the layout is."""


class Ranking:
    """Everything that fits, fastest segment first.

    Args:
        segments: what fits. only: a mask over a column that holds for every answer.
    """

    def __init__(self, segments: list[Segment], only: Callable[[Column], Any] | None = None) -> None:
        fastest = np.array([segment.step_s.min() for segment in segments])
        self._order = np.argsort(fastest, kind="stable")
        self._fastest = fastest
        self._segments = segments
        self._only = only

    def whole(self, only: Callable[[Column], Any] | None = None) -> Ranking:
        """The same with another ``only``, for questions that ask for less."""
        return Ranking(self._segments, only)

    def _visit(self) -> Iterator[tuple[float, Segment]]:
        for index in self._order:
            yield float(self._fastest[index]), self._segments[index]

    def best(self, where: Callable[[Column], Any] | None = None) -> Candidate | None:
        """The fastest layout for which ``where`` (a mask over a column, or one truth value) holds."""
        found = self.top(1, where)
        return found[0] if found else None

    def top(self, count: int, where: Callable[[Column], Any] | None = None) -> list[Candidate]:
        """The ``count`` fastest, by time, then memory, then the shorter text."""
        rows: list[Row] = []
        for fastest, segment in self._visit():
            if len(rows) >= count and fastest > rows[count - 1][0]:
                break
            rows += self._fastest_rows(segment, count, where)
            rows.sort(key=lambda row: row[:2])
            last = rows[count - 1][0] if len(rows) >= count else np.inf
            rows = [row for row in rows if row[0] <= last][: 4 * count]
        found = [_candidate(row) for row in rows]
        found.sort(key=lambda candidate: (candidate.step_s, candidate.peak_bytes, len(str(candidate.layout))))
        return found[:count]

    def leaders(
        self, count: int, group: Callable[[Column], Hashable], where: Callable[[Column], Any] | None = None
    ) -> list[list[Candidate]]:  # fmt: skip
        """The ``count`` fastest of each group of columns, by time, then memory; ``where`` as in ``best``."""
        groups: dict[Hashable, list[Row]] = {}
        for fastest, segment in self._visit():
            rows = groups.setdefault(group(segment.column), [])
            if len(rows) < count or fastest < rows[-1][0]:
                rows += self._fastest_rows(segment, count, where)
                rows.sort(key=lambda row: row[:2])
                del rows[count:]
        return [[_candidate(row) for row in rows] for rows in groups.values()]

    def _fastest_rows(
        self, segment: Segment, count: int, where: Callable[[Column], Any] | None
    ) -> list[Row]:  # fmt: skip
        step_s = self._where(segment, where)
        if step_s is None:
            return []
        few = _smallest(step_s, count)
        return [(float(step_s[at]), float(segment.peak_bytes[at]), segment, int(at)) for at in few if np.isfinite(step_s[at])]

    def _where(self, segment: Segment, where: Callable[[Column], Any] | None = None) -> Any:
        """Its step seconds, infinite for what is not asked for; None where nothing of it is."""
        step_s = segment.step_s
        for condition in (self._only, where):
            mask = True if condition is None else condition(segment.column)
            if isinstance(mask, np.ndarray):
                step_s = np.where(mask[segment.index], step_s, np.inf)
            elif not mask:
                return None
        return step_s

    def front(self) -> list[Candidate]:
        """Layouts that nothing beats in both time and memory, the smallest first (to one part in FRONT_BINS of memory)."""
        asked = [(segment, step_s) for segment in self._segments if (step_s := self._where(segment)) is not None]
        if not asked:
            return []
        segments = [segment for segment, _ in asked]
        steps = np.concatenate([step_s for _, step_s in asked])
        peaks = np.concatenate([segment.peak_bytes for segment in segments])
        ends = np.cumsum([len(segment.step_s) for segment in segments])
        bins = (peaks * ((FRONT_BINS - 1) / peaks.max())).astype(np.uint8)
        order = np.argsort(bins, kind="stable")
        starts = np.searchsorted(bins[order], np.arange(FRONT_BINS + 1))
        found: list[Candidate] = []
        for low, high in pairwise(starts):
            if low == high:
                continue
            at = int(order[low + int(np.argmin(steps[order[low:high]]))])
            if steps[at] < (found[-1].step_s if found else np.inf):
                which = int(np.searchsorted(ends, at, side="right"))
                segment = segments[which]
                inside = at - (int(ends[which - 1]) if which else 0)
                layout = segment.column.layout(int(segment.index[inside]))
                found.append(Candidate(layout, float(steps[at]), float(peaks[at])))
        return found


def _smallest(values: Any, count: int) -> Any:
    """Indices of the ``count`` smallest, in order, of equal ones the first."""
    few = np.arange(len(values))
    if len(values) > 4 * count:
        few = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
    return few[np.argsort(values[few], kind="stable")[:count]]


def _candidate(row: Row) -> Candidate:
    step_s, peak, segment, at = row
    return Candidate(segment.column.layout(int(segment.index[at])), step_s, peak)
