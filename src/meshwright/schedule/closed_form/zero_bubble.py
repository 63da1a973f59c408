"""ZB-H1, ZB-H2 and the automatic schedules of the same memory: one chunk per rank, weight halves that lag behind input halves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshwright.schedule.closed_form.along_stages import Number, column, hops, mean_hop, running_total, total

__all__ = ["zb_h1", "zb_h2"]

Array = npt.NDArray[np.float64]


def zb_h1(f: Array, i: Array, w: Array, t: Array | None, m: Number, p: int, v: int) -> Array:
    """ZB-H1: m (f + i + w) + (p - 1)(f + i - w) for equal stages (arXiv 2401.10241 Table 2, w <= i)."""
    return _Lagging(f, i, w, t, m, p, reach=1).span_s


def zb_h2(f: Array, i: Array, w: Array, t: Array | None, m: Number, p: int, v: int) -> Array:
    """ZB-H2, and about ZB-2p, whose greedy order is close.

    From rank 0's start to its end it is the paper's m (f + i + w) + (p - 1)(f + i - 2 w) (arXiv 2401.10241 Table 2). Counted from
    the first start of any rank to the last end of any rank it is longer where the last rank, which starts (p - 1) f later, ends as
    late as rank 0 does.
    """
    return _Lagging(f, i, w, t, m, p, reach=2).span_s


class _Lagging:
    """Paths of a schedule in which stage s runs ``reach (p - 1 - s)`` forwards ahead and its weight halves ``reach s`` behind.

    A path reaches stage s and stays there while there are forwards. Before its first input half it may follow the first micro-batch
    to the end of the pipeline and back instead of the forwards ahead (``start``). It ends in one of three ways: ``_in_the_middle``
    has two of them, ``_when_forwards_end`` the third. For equal stages these are all longest paths; where messages hold their
    senders, and so the stages at the ends do less, they are within a hundredth.
    """

    def __init__(self, f: Array, i: Array, w: Array, t: Array | None, m: Number, p: int, reach: int) -> None:
        self.f, self.i, self.w, self.t, self.m, self.p, self.reach = f, i, w, t, m, p, reach
        self.stage = column(np.arange(p), f)
        forwards, inputs = running_total(f), running_total(i)
        self.behind = (forwards[-1] + inputs[-1]) - forwards - inputs
        self.before, self.upward = forwards - f, inputs - i
        self.one_round: Array | None = None  # messages of a way to the end and back, where they are waited for
        if t is not None:
            messages = hops(t, p)
            one_round = 2 * (messages[-1] - messages)
            self.before += messages
            self.upward += messages
            self.behind += one_round
            if reach == 1:
                self.one_round = one_round

    @property
    def span_s(self) -> Array:
        longest, fill = self._in_the_middle(), self.reach * (self.p - 1) + 1
        few = (self.m > 1) & (self.m <= fill)
        if self.p > 1 and np.any(few):
            longest = np.maximum(longest, np.where(few, self._when_forwards_end(), 0.0))
        return longest

    def _in_the_middle(self) -> Array:
        """Stay to the last input half, go up to a stage j <= s and do the weight halves left there; or follow the last forward to the
        end of the pipeline, in the place of the last backwards, and come back to any stage."""
        f, i, w, m = self.f, self.i, self.w, self.m
        lag, ahead = np.minimum(self.reach * self.stage, m), np.minimum(self.reach * (self.p - 1 - self.stage), m - 1)
        early = np.maximum(m - 1 - lag, 0)  # weight halves before the last input half
        stay = m * (f + i) + early * w + self.before
        stay += self.upward
        at_start = np.maximum(self.behind - ahead * f, 0.0)
        left = np.minimum(lag + 1, m) * w - self.upward
        ending = np.maximum.accumulate(left, axis=0)
        instead = self.behind - ahead * i - np.minimum(ahead, early) * w + ending[-1]
        more = m - 1 - ahead
        instead += at_start * (more > 0)
        ending += at_start
        if self.one_round is not None:
            n, w = self.p - self.stage, self.w
            ending += self._round_trips(n, self.one_round, w, np.minimum(lag, m - 1), np.maximum(more - lag, 0))
            instead += self._round_trips(n, self.one_round, w, np.minimum(lag, np.maximum(more - 1, 0)), np.maximum(more - 1 - lag, 0))
        result: Array = (stay + np.maximum(ending, instead)).max(axis=0)
        return result

    def _when_forwards_end(self) -> Array:
        """With too few micro-batches to fill the pipeline, leave when the forwards end and no weight half was due yet.

        Then a path does as many input halves as are left, with the weight halves beside them, on its way up: to stage 0; or to the
        first stage that has not done one either, where all m weight halves are still to come. With equal stages the longest of these
        leaves one of the first two stages that have forwards behind their first input half, or one of the last two.
        """
        p, m, reach = self.p, self.m, self.reach
        first = np.maximum(p - 1 - np.maximum(m - 2, 0) // reach, 0)
        stages = range(1, p) if p <= 4 else (first, np.minimum(first + 1, p - 1), np.maximum(first, p - 2), p - 1)
        inner_i, inner_w = total(self.i[1:]) / (p - 1), total(self.w) / p
        up = inner_i if self.t is None else inner_i + mean_hop(self.t)
        longest: Array = np.zeros_like(up)
        for stage in stages:
            f, i, before, behind, upward = (self._at(times, stage) for times in (self.f, self.i, self.before, self.behind, self.upward))
            ahead = np.minimum(reach * (p - 1 - stage), m - 1)
            more, span = m - 1 - ahead, ahead + 1
            leave = before + f + np.maximum(ahead * f, behind) + more * (f + i)
            if self.one_round is not None:
                leave = leave + self._round_trips(p - stage, self._at(self.one_round, stage), inner_w, more, 0)
            to_first = upward + (span - 1) * np.where(more >= reach, inner_i, self.i[0]) + i + span * self.w[0]
            there = np.ceil(more / reach)
            one_less = np.where((there * reach > more) & (more > reach), np.maximum(0.0, up - np.minimum(f, inner_w)), 0.0)
            to_inner = np.where(there <= stage, (stage - there) * up + span * inner_i + m * inner_w + one_less, 0.0)
            longest = np.maximum(longest, np.where(more > 0, leave + np.maximum(to_first, to_inner), 0.0))
        return longest

    def _round_trips(self, n: Number | Array, one_round: Array, w: Array, steps: Array, due: Array | int) -> Array:
        """Messages on paths that go to the end of the pipeline and back again and again, with n micro-batches each time: in ``steps``
        while no weight half is due, and in ``due`` ones in the place of weight halves, where these are shorter.

        ZB-H2 is far enough ahead not to wait for them.
        """
        a_step = one_round / np.maximum(n - 1, 1)
        result: Array = a_step * (steps - np.ceil(steps / n))
        if np.any(a_step > w):
            result = result + np.maximum(a_step - w, 0.0) * (due - np.ceil(due / n))
        if self.t is not None and len(self.t) > 1 and np.shape(steps)[:1] == (self.p,):
            result[:-1] = np.maximum(result[:-1], 2 * self.t * np.floor(steps[:-1] / 2))
        return result

    @staticmethod
    def _at(times: Array, stage: Number) -> Array:
        """The row of each layout's stage."""
        if isinstance(stage, int) or not np.ndim(stage):
            row: Array = times[int(stage)]
            return row
        found: Array = np.take_along_axis(times, np.asarray(stage)[np.newaxis], axis=0)[0]
        return found
