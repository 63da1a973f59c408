"""A stack fitted to a few of a user's own runs: where their constants and their level most probably lie, and how sure that is.

The user's constants are taken to lie around the catalog's as normal variables (site, release and clock differ), and a step's
logarithm to be linear in them; K runs then give the most probable ones in closed form (a Gaussian process with the model's
own sensitivities as kernel; Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.calibrate.steps import FREE, Steps, constants_at, position_of
from meshwright.errors import InputError, Mistake, Mistakes
from meshwright.spec.efficiency import Efficiency, fitted
from meshwright.spec.load_stack import LARGEST_LEVEL, LARGEST_SPREAD, stack_text
from meshwright.spec.stack import Stack
from meshwright.validate.judge import questions_of
from meshwright.validate.question import Question
from meshwright.validate.runs import read_runs

Array = npt.NDArray[np.float64]

SITE_SPREAD = 0.6
"""How far a site's constants lie from the catalog's, in standard deviations of the priors."""

SITE_LEVEL, MOE_LEVEL = 0.07, 0.15
"""The same of its level, in the logarithm of a step: clocks, and what no constant stands for. Releases of one library differ by 26 to 72 %
in the same MoE run (Megatron-Bridge 25.09 to 26.06), and within a tenth in a dense one."""

DENSE_NOISE, MOE_NOISE = 0.05, 0.12
"""Deviation of one run from its site's own constants: what the model does not see. All by the errors and the coverage of sources that
were left out of the fit (docs/log.md, 2026-11-29)."""


@dataclass(frozen=True)
class Site:
    """What runs told of their site.

    Attributes:
        x: the constants (steps.py). level: logarithm of the factor on every step; level_spread: what was known of it before. runs: the ids.
        jacobian, inverse: of the runs that were used, for the uncertainty of others.
    """

    x: Array
    level: float
    level_spread: float
    runs: tuple[str, ...]
    jacobian: Array
    inverse: Array

    @property
    def constants(self) -> Efficiency:
        return constants_at(self.x)

    def stack(self, base: Stack, spread: float | None = None) -> Stack:
        """A stack as this site runs it."""
        return replace(base, efficiency=self.constants, level=float(np.exp(self.level)), spread=spread, base=base.framework)

    def spread(self, jacobian: Array, noise: float) -> Array:
        """Standard deviation of the logarithm of other runs' measured over predicted; ``jacobian`` is theirs."""
        prior = SITE_SPREAD**2 * np.sum(jacobian**2, axis=1) + self.level_spread**2
        cross = SITE_SPREAD**2 * jacobian @ self.jacobian.T + self.level_spread**2
        told = np.einsum("ij,jk,ik->i", cross, self.inverse, cross)
        return np.asarray(np.sqrt(np.maximum(prior - told, 0.0) + noise**2))


def noise_of(question: Question) -> float:
    """Deviation of one run from its site's constants."""
    return DENSE_NOISE if question.dense else MOE_NOISE


def fit_site(questions: Sequence[Question], constants: Efficiency | None = None) -> Site:
    """The most probable constants and level, given runs with a measured step time.

    Args:
        constants: what they are taken to lie around, None for the catalog's.
    """
    steps, x = Steps(questions), position_of(constants or fitted())
    level = SITE_LEVEL if any(question.dense for question in questions) else MOE_LEVEL
    jacobian = steps.jacobian(x)
    covariance = SITE_SPREAD**2 * jacobian @ jacobian.T + level**2
    noise = np.diag([noise_of(question) ** 2 for question in questions])
    inverse = np.asarray(np.linalg.inv(covariance + noise), dtype=np.float64)
    pull = inverse @ (steps.measured - steps.log_s(x))
    moved = x + SITE_SPREAD**2 * jacobian.T @ pull
    return Site(moved, float(level**2 * pull.sum()), level, tuple(q.run.id for q in questions), jacobian, inverse)


@dataclass(frozen=True, kw_only=True)
class CalibratedStack:
    """The answer of ``meshwright calibrate RUNS.csv``.

    Attributes:
        stack: the new one. changed: (constant, before, after) of those that moved by a tenth of a spread or more.
        before, after: mean |predicted / measured - 1| of the runs. left_out: the same with each run left out of the fit.
    """

    stack: Stack
    runs: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    changed: tuple[tuple[str, float, float], ...]
    before: float
    after: float
    left_out: float | None

    @property
    def text(self) -> str:
        """The stack's file."""
        return stack_text(self.stack)

    def as_json(self) -> dict[str, Any]:
        """The keys of the command's answer."""
        return {
            "base": self.stack.framework, "runs": list(self.runs), "skipped": [{"id": name, "why": why} for name, why in self.skipped],
            "level": self.stack.level, "spread": self.stack.spread, "error_before": self.before, "error": self.after,
            "error_left_out": self.left_out,
            "changed": [{"name": name, "before": before, "after": after} for name, before, after in self.changed],
        }  # fmt: skip


CHANGE_TO_TELL = 0.1


def calibrate_stack(questions: Sequence[Question], skipped: Sequence[tuple[str, str]], name: str, source: str) -> CalibratedStack:
    """Fit one stack to runs of one framework: the stack of the first one."""
    base = questions[0].stack
    start = base.efficiency or fitted()
    x, site = position_of(start), fit_site(questions, start)
    steps = Steps(questions)
    before = steps.log_s(x) - steps.measured
    after = steps.log_s(site.x) + site.level - steps.measured
    left_out = _left_out(questions, start) if len(questions) > 2 else None
    noise = np.array([noise_of(question) for question in questions])
    spread = float(np.sqrt(np.mean(left_out**2))) if left_out is not None else float(np.mean(site.spread(site.jacobian, 0.0) + noise))
    stack = replace(site.stack(base, max(spread, float(noise.min()) / 2)), name=name, source=source)
    moved = [index for index in range(len(x)) if abs(site.x[index] - x[index]) >= CHANGE_TO_TELL]
    names = list(_values(start))
    changed = tuple((names[i], _values(start)[names[i]], _values(site.constants)[names[i]]) for i in moved)
    return CalibratedStack(
        stack=stack, runs=site.runs, skipped=tuple(skipped), changed=changed, before=_mean(before), after=_mean(after),
        left_out=None if left_out is None else _mean(left_out),
    )  # fmt: skip


def fit_runs(path: Path, name: str) -> CalibratedStack:
    """What ``meshwright calibrate RUNS.csv`` does, without printing.

    Raises:
        InputError: the file is no table of runs, no run in it can be judged, its runs are of several frameworks, or a time is no
            step of the job that the row tells.
    """
    found, skipped = questions_of(read_runs(path))
    timed = [question for question in found if question.time is not None and question.time.step_s is not None]
    told = [(one.id, one.why) for one in skipped] + [(q.id, "no step time") for q in found if q not in timed]
    if not timed:
        reason = told[0][1] if told else "the table is empty"
        raise InputError([Mistake(str(path), "", None, "a run with a step time", problem=f"has no run to fit: {reason}")])
    stacks = sorted({question.stack.framework for question in timed})
    if len(stacks) > 1:
        legal = "runs of one framework: a stack is one framework's"
        raise InputError([Mistake(str(path), "stack", ", ".join(stacks), legal, problem="are several frameworks")])
    source = f"{path.name if path.name.isprintable() else 'a table'}: {len(timed)} runs, fitted by meshwright calibrate"
    _refuse_slips(path, timed)
    fit = calibrate_stack(timed, told, name, source)
    if fit.stack.spread is not None and fit.stack.spread > LARGEST_SPREAD:
        problem = f"contradict each other: each is {fit.stack.spread:.1f} off in the logarithm when the others are fitted"
        legal = f"runs that one stack explains, within {LARGEST_SPREAD:g}"
        raise InputError([Mistake(str(path), "step_s", None, legal, "is each time in seconds, of one whole step?", problem)])
    return fit


def _refuse_slips(path: Path, questions: Sequence[Question]) -> None:
    """No site is ten times as fast or as slow as the catalog's constants: such a time is in another unit or of another job."""
    steps = Steps(questions)
    predicted = np.exp(steps.log_s(position_of(questions[0].stack.efficiency or fitted())))
    with Mistakes.of(str(path)) as mistakes:
        for question, measured_s, step_s in zip(questions, np.exp(steps.measured), predicted, strict=True):
            if not step_s / LARGEST_LEVEL <= measured_s <= step_s * LARGEST_LEVEL:
                legal = f"from {step_s / LARGEST_LEVEL:.3g} to {step_s * LARGEST_LEVEL:.3g} seconds"
                hint = "is it in seconds, of one optimizer step of the whole batch?"
                mistakes.add(f"step time of {question.id}", f"{measured_s:.4g} s", legal, hint, f"is far from the predicted {step_s:.3g} s")


def _left_out(questions: Sequence[Question], start: Efficiency) -> Array:
    """Logarithm of predicted over measured of each run under the fit to the others."""
    found = []
    for index, question in enumerate(questions):
        site, one = fit_site([*questions[:index], *questions[index + 1 :]], start), Steps([question])
        found.append(float((one.log_s(site.x) + site.level - one.measured)[0]))
    return np.array(found)


def _mean(logarithms: Array) -> float:
    return float(np.mean(np.abs(np.exp(logarithms) - 1)))


def _values(constants: Efficiency) -> dict[str, float]:
    return {name: getattr(constants, name) for name in FREE}
