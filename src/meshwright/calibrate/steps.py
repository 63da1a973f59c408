"""Predicted step times of many runs as a function of the fitted constants, in units of their priors' standard deviations.

The ledger of a run is counted once; what changes with the constants is the pricing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshwright.calibrate.least_squares import numeric_jacobian
from meshwright.ledger.build import Ledger, build
from meshwright.priced import Priced
from meshwright.spec.efficiency import CONSTANTS, NAMES, Efficiency, efficiency_of
from meshwright.step_time import step_s
from meshwright.validate.question import Question

Array = npt.NDArray[np.float64]

FREE = tuple(name for name in NAMES if CONSTANTS[name].spread > 0)
"""Constants that are fitted."""

PRIORS = np.array([CONSTANTS[name].prior for name in FREE])
SPREADS = np.array([CONSTANTS[name].spread for name in FREE])


def constants_at(x: Array) -> Efficiency:
    """The constants that lie ``x`` standard deviations from their priors, in the logarithm."""
    return efficiency_of(dict(zip(FREE, PRIORS * np.exp(SPREADS * x), strict=True)))


def position_of(constants: Efficiency) -> Array:
    """The inverse of ``constants_at``."""
    values = np.array([getattr(constants, name) for name in FREE])
    return np.asarray(np.log(values / PRIORS) / SPREADS)


class Steps:
    """The runs, counted."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.questions = tuple(questions)
        self._ledgers: list[Ledger] = [build(q.model, q.workload, q.layout, q.stack) for q in self.questions]
        self.measured = np.log([_measured_s(question) for question in self.questions])

    def log_s(self, x: Array) -> Array:
        """Logarithm of the predicted seconds, in closed form."""
        constants = constants_at(x)
        found = []
        for question, ledger in zip(self.questions, self._ledgers, strict=True):
            ledger.stack = replace(question.stack, efficiency=constants)
            found.append(float(step_s(Priced(ledger, question.cluster))))
        return np.asarray(np.log(found))

    def jacobian(self, x: Array) -> Array:
        """Derivative of ``log_s``, shape [runs, constants]."""
        return numeric_jacobian(self.log_s, x, self.log_s(x))


def _measured_s(question: Question) -> float:
    time = question.time
    assert time is not None and time.step_s is not None
    return time.step_s
