"""Fit the constants of the time model to published runs, once with all sources and once without each: writes catalog/efficiency.toml.

    python benchmarks/fit_efficiency.py RUNS.csv [OUT.toml]

Minimised: squares of log(predicted / measured step), 5 % for dense and 12 % for MoE runs, Huber beyond two of these; of each
constant's distance from its prior; and of a level for each source, so that a slow site does not bend the physics. A source
of n runs weighs as the square root of n of its runs times WEIGHT. Rows that do not say everything, or are in doubt, weigh
less. About five minutes of one core.
"""

from __future__ import annotations

import csv
import sys
from datetime import date
from pathlib import Path

import numpy as np

from meshwright.calibrate.least_squares import Array, Solution, numeric_jacobian, solve
from meshwright.calibrate.steps import FREE, Steps, constants_at, position_of
from meshwright.catalog import ROOT as CATALOG
from meshwright.spec.efficiency import fitted
from meshwright.spec.toml_writer import toml_text
from meshwright.validate.judge import questions_of
from meshwright.validate.question import Question
from meshwright.validate.runs import read_runs

LEVEL_SPREAD = 0.045
DENSE_NOISE, MOE_NOISE = 0.05, 0.12
WEIGHT = 3.0
INCOMPLETE, BLIND, DOUBTED = 0.3, 0.05, 0.2
"""Weight of rows that leave a degree or the micro-batch out; of rows whose figure cannot be right for the stated run; of other doubts."""

BLIND_DOUBTS = ("regime", "host-bound", "software")
SLIGHT_DOUBTS = ("missing", "shape", "FLOPs convention")
"""Doubts that leave the time as it is, or within a few percent."""

MOST_TORCH_CP = 2
"""Ranks of torch's context parallelism of 2024 that still run at the kernels' rate. From four on attention takes 1.5 times as long, which
no term explains (docs/log.md); what is not understood must not slow the kernels of other runs."""


class Fit:
    """The data, with their weights."""

    def __init__(self, path: Path) -> None:
        questions, _ = questions_of(read_runs(path))
        kept = [q for q in questions if q.time is not None and q.time.step_s is not None]
        self.steps = Steps(kept)
        self.sources = sorted({q.run.source for q in kept})
        self.source = np.array([self.sources.index(q.run.source) for q in kept])
        self.noise = np.where([q.dense for q in kept], DENSE_NOISE, MOE_NOISE)
        doubts = doubt_of(path)
        weight = np.array([weight_of(q, doubts.get(q.id, "")) for q in kept])
        total = np.array([weight[self.source == index].sum() for index in range(len(self.sources))])
        self.weight = weight * WEIGHT / np.sqrt(total[self.source])

    def residuals(self, x: Array) -> Array:
        level = LEVEL_SPREAD * x[len(FREE) :][self.source]
        return np.asarray((self.steps.log_s(x[: len(FREE)]) - self.steps.measured - level) / self.noise)


def doubt_of(path: Path) -> dict[str, str]:
    """The gravest doubt of each row, by id."""
    beside = path.with_name(f"{path.stem}_doubtful{path.suffix}")
    found: dict[str, str] = {}
    with beside.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["id"] not in found or row["kind"] in BLIND_DOUBTS:
                found[row["id"]] = row["kind"]
    return found


def weight_of(question: Question, doubt: str) -> float:
    weight = 1.0 if question.complete else INCOMPLETE
    if question.stack.name == "torchtitan" and question.layout.cp > MOST_TORCH_CP:
        return weight * BLIND
    if doubt in BLIND_DOUBTS or (doubt == "shape" and not question.complete):
        return weight * BLIND
    return weight * (DOUBTED if doubt and doubt not in SLIGHT_DOUBTS else 1.0)


def main() -> None:
    path = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else CATALOG / "efficiency.toml"
    fit = Fit(path)
    start = np.concatenate([position_of(fitted()), np.zeros(len(fit.sources))])
    whole = solve(fit.residuals, start, weights=fit.weight, iterations=12)
    count = len(FREE)
    left_out: dict[str, dict[str, float]] = {}
    print(
        f"{len(fit.source)} runs, {count} constants; levels",
        dict(zip(fit.sources, np.round(LEVEL_SPREAD * whole.x[count:], 3), strict=True)),
    )
    errors = []
    for index, source in enumerate(fit.sources):
        weight = fit.weight * (fit.source != index)
        other = refit(fit, whole, weight)
        left_out[source] = _values(other.x[:count])
        own = fit.source == index
        errors.append(np.exp((fit.steps.log_s(other.x[:count]) - fit.steps.measured)[own]) - 1)
        print(f"{source:10} {own.sum():3} runs, left out: mean {np.abs(errors[-1]).mean():.1%} bias {errors[-1].mean():+.1%}")
    note = (
        f"# Constants of the time model (spec/efficiency.py), fitted {date.today()} by benchmarks/fit_efficiency.py to the\n"
        f"# {len(fit.source)} runs of {path.name}; left_out.SOURCE: without that source's runs.\n\n"
    )
    out.write_text(note + toml_text({"fitted": _values(whole.x[:count]), "left_out": left_out}), encoding="utf-8")


ROUNDS = 3
"""Fresh Jacobians of a fit that starts from another one; a fourth changes no error by 0.1 %."""


def refit(fit: Fit, start: Solution, weight: Array) -> Solution:
    """The fit to other weights. Its Jacobian is worked out anew until nothing moves: a fit that stops half way still knows the runs that
    it should not."""
    found = solve(fit.residuals, start.x, weights=weight, iterations=8, jacobian=start.jacobian)
    for _ in range(ROUNDS):
        jacobian = numeric_jacobian(fit.residuals, found.x, fit.residuals(found.x))
        found = solve(fit.residuals, found.x, weights=weight, iterations=8, jacobian=jacobian)
    return found


def _values(x: Array) -> dict[str, float]:
    constants = constants_at(x)
    return {name: float(f"{getattr(constants, name):.5g}") for name in FREE}


if __name__ == "__main__":
    main()
