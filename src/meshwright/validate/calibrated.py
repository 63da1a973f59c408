"""Judged again after calibration: some runs of each source are fitted, the rest is judged with the constants that these tell.

Dense and MoE runs of a source are calibrated apart, as a user would: on runs of the kind that is asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.calibrate.runs import Site, fit_site, noise_of
from meshwright.calibrate.steps import Steps, position_of
from meshwright.spec.efficiency import Efficiency, fitted
from meshwright.validate.judge import Judged, Price, judge, ranged
from meshwright.validate.question import Question
from meshwright.validate.summary import by

QUANTILE = 1.645
"""Of the normal distribution: 5 % beyond each end of a range."""

MEMORY_LEVEL, MEMORY_NOISE = 0.03, 0.05
"""Spread of a site's own factor on memory (what its kernels keep), and of one run around it: three runs are believed half.
An offset and a factor of the activations alone instead of one factor tell no more (docs/log.md, 2026-11-30)."""


def judge_calibrated(
    judged: Sequence[Judged], unfit: frozenset[str], runs: int, seed: int, price: Price
) -> tuple[list[Judged], tuple[str, ...]]:  # fmt: skip
    """The figures of every group with more than ``runs`` timed rows, without those that were fitted; and the ids of these.

    Args:
        unfit: rows that are not fitted (doubtful ones), though judged.
    """
    generator = np.random.default_rng(seed)
    found: list[Judged] = []
    used: list[str] = []
    for group in by(judged, lambda one: f"{one.source} {one.question.dense}").values():
        questions = list({one.id: one.question for one in group}.values())
        timed = [question for question in questions if question.id not in unfit and _is_timed(question)]
        if len(timed) <= runs:
            continue
        chosen = [timed[index] for index in sorted(generator.permutation(len(timed))[:runs])]
        ids = {question.id for question in chosen}
        rest = [question for question in questions if question.id not in ids]
        found += _judge_rest(chosen, rest, group, price)
        used += [question.id for question in chosen]
    return found, tuple(used)


def _is_timed(question: Question) -> bool:
    return question.complete and question.time is not None and question.time.step_s is not None


def _judge_rest(chosen: list[Question], rest: list[Question], group: Sequence[Judged], price: Price) -> list[Judged]:
    start = chosen[0].stack.efficiency or fitted()
    site, memory = fit_site(chosen, start), _memory_factor([one for one in group if one.id in {question.id for question in chosen}])
    spreads = _spreads(site, start, rest)
    found = []
    for question in rest:
        calibrated = replace(question, stack=site.stack(question.stack))
        for one in judge(calibrated, price):
            if one.is_time:
                found.append(ranged(one, QUANTILE * spreads[question.id]))
            else:
                found.append(replace(one, predicted=one.predicted * memory, low=one.low * memory, high=one.high * memory))
    return found


def _spreads(site: Site, start: Efficiency, rest: Sequence[Question]) -> dict[str, float]:
    """Deviation of each run that has a time."""
    timed = [question for question in rest if question.time is not None and question.time.step_s is not None]
    if not timed:
        return {}
    jacobian = Steps(timed).jacobian(position_of(start))
    return {
        question.id: float(site.spread(jacobian[index : index + 1], noise_of(question))[0]) for index, question in enumerate(timed)
    }  # fmt: skip


def _memory_factor(fitted_rows: Sequence[Judged]) -> float:
    """Most probable factor on memory."""
    logs = [np.log(one.measured / one.predicted) for one in fitted_rows if not one.is_time]
    if not logs:
        return 1.0
    return float(np.exp(np.sum(logs) / (len(logs) + (MEMORY_NOISE / MEMORY_LEVEL) ** 2)))
