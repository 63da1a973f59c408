"""Errors of many runs in a few numbers: by source, and whether a source's layouts are ordered as they were measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from meshwright.validate.judge import Judged

APART = 0.03
"""Two runs whose measured times differ by less are not told apart: repeats of a run differ by as much."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """|predicted / measured - 1| over some figures; ``bias`` is the mean with its sign, ``covered`` the share inside its range."""

    count: int
    mape: float
    median: float
    p90: float
    worst: float
    bias: float
    covered: float

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def errors(judged: Sequence[Judged]) -> Errors | None:
    """None where there is nothing to judge."""
    if not judged:
        return None
    signed = np.array([one.error for one in judged])
    size = np.abs(signed)
    return Errors(
        count=len(judged), mape=float(size.mean()), median=float(np.median(size)), p90=float(np.quantile(size, 0.9)),
        worst=float(size.max()), bias=float(signed.mean()), covered=float(np.mean([one.covered for one in judged])),
    )  # fmt: skip


def by(judged: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    """Figures by source, device or whatever ``key`` says, in the order of their first."""
    groups: dict[str, list[Judged]] = {}
    for one in judged:
        groups.setdefault(key(one), []).append(one)
    return groups


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How well layouts of one model, cluster and workload are ordered.

    Attributes:
        pairs: that differ by more than APART. ordered: share of them in the right order. choices: sets of layouts that a
            choice is made from. regret: mean of measured time of our choice / best measured time - 1.
        correlation: mean rank correlation (Spearman) over sets of three and more.
    """

    pairs: int
    ordered: float
    choices: int
    regret: float
    correlation: float

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def ranking(judged: Iterable[Judged]) -> Ranking | None:
    """Pairs of runs of one source, and choices among a source's layouts of one model on one cluster."""
    timed = [one for one in judged if one.is_time and seconds_per_token(one) is not None]
    right = total = 0
    for group in by(timed, lambda one: one.source).values():
        for a, b in combinations(group, 2):
            measured, predicted = _apart(a, b)
            if abs(np.log(measured)) > np.log(1 + APART):
                total += 1
                right += (measured > 1) == (predicted > 1)
    if not total:
        return None
    choices = [group for group in by(timed, _same_question).values() if len(group) > 1]
    correlations = [_spearman(group) for group in choices if len(group) > 2]
    return Ranking(
        pairs=total, ordered=right / total, choices=len(choices), regret=float(np.mean([_regret(group) for group in choices] or [0.0])),
        correlation=float(np.mean(correlations or [1.0])),
    )  # fmt: skip


def seconds_per_token(one: Judged) -> float | None:
    """Measured GPU seconds per token, in which runs of different batches and GPU counts can be compared."""
    figure = one.question.time
    if figure is None or figure.step_s is None:
        return None
    return figure.step_s * _gpu_per_token(one)


def _gpu_per_token(one: Judged) -> float:
    question = one.question
    return question.layout.world_size / (question.workload.batch * question.workload.seq)


def _apart(a: Judged, b: Judged) -> tuple[float, float]:
    """Ratios of measured and of predicted GPU seconds per token."""
    first, second = seconds_per_token(a), seconds_per_token(b)
    assert first is not None and second is not None
    return first / second, a.step_s * _gpu_per_token(a) / (b.step_s * _gpu_per_token(b))


def _same_question(one: Judged) -> str:
    """What a planner is asked: one model, sequence, precision, cluster size; only the layout is open."""
    question = one.question
    asked = (one.source, question.run.text("source"), question.model.name, question.workload.seq, question.workload.batch)
    return "|".join(map(str, (*asked, question.workload.precision, question.cluster.name, question.layout.world_size, question.stack)))


def _regret(group: Sequence[Judged]) -> float:
    measured = [seconds_per_token(one) or 0.0 for one in group]
    ours = min(range(len(group)), key=lambda index: group[index].step_s * _gpu_per_token(group[index]))
    return measured[ours] / min(measured) - 1


def _spearman(group: Sequence[Judged]) -> float:
    """Rank correlation of measured and predicted seconds; 1 where all are equal."""
    ranks = [
        np.argsort(np.argsort(values))
        for values in ([seconds_per_token(one) or 0.0 for one in group], [one.step_s * _gpu_per_token(one) for one in group])
    ]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
