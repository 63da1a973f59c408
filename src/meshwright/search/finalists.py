"""The last round of a search: the best by the formula, timed by the simulator and put in its order.

Every step that a plan prints is the simulator's, which is also what ``estimate`` and ``timeline`` say of that layout. The formula
decides only who comes into this round; how far the two were apart is part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from meshwright.estimate import Estimate, estimate
from meshwright.search.evaluate import Question
from meshwright.search.rank import Candidate, Ranking
from meshwright.search.why import Decision, explain_choice
from meshwright.spec.layout import Layout
from meshwright.spec.rules import check

FINALISTS = 20
"""How many are simulated: the gap between formula and simulator is below a hundredth, and as many plans as this are rarely as near
to the first."""

MAX_COMPUTATIONS = 1_000_000
"""Of all finalists together (p x v x m x 2 each), but for the plans that are shown: about two seconds of simulation."""


@dataclass(frozen=True)
class Gap:
    """The finalist on which formula and simulator are farthest apart; ``relative`` is formula / simulator - 1."""

    layout: Layout
    step_s: float
    closed_form_step_s: float

    @property
    def relative(self) -> float:
        return self.closed_form_step_s / self.step_s - 1.0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "layout": str(self.layout), "relative": self.relative}


class Finalists:
    """Candidates that have been simulated, each once."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._known: dict[Layout, Estimate] = {}
        self._closed: dict[Layout, float] = {}

    def price(self, candidate: Candidate) -> Estimate:
        """What ``estimate`` says of it."""
        layout = candidate.layout
        if layout not in self._known:
            self._closed[layout] = candidate.step_s
            self._known[layout] = price(self.question, layout)
        return self._known[layout]

    def simulated(self, candidate: Candidate) -> Candidate:
        """The candidate with the simulator's step."""
        return replace(candidate, step_s=self.price(candidate).step_s)

    def ordered(self) -> list[Estimate]:
        """All of them: by time, then memory, then the shorter text."""
        return sorted(self._known.values(), key=lambda each: (each.step_s, each.memory_bytes, len(str(each.layout))))

    def closed_form_step_s(self, layout: Layout) -> float | None:
        """The formula's step; None for a layout that did not come this far."""
        return self._closed.get(layout)

    @property
    def largest_gap(self) -> Gap:
        gaps = [Gap(layout, self._known[layout].step_s, closed) for layout, closed in self._closed.items()]
        return max(gaps, key=lambda gap: abs(gap.relative))


def price(question: Question, layout: Layout) -> Estimate:
    """One layout as ``estimate`` prices it, with its warnings."""
    space = question.space
    found = estimate(space.model, question.cluster, space.workload, layout, question.stack, question.memory_fraction)
    return replace(found, warnings=check(space.model, space.workload, layout, question.cluster, space.gpus))


def final_round(question: Question, ranking: Ranking, top: int) -> tuple[Finalists, list[Decision]]:
    """The finalists, and the decisions behind the fastest of them.

    The best layout that decides something otherwise than the fastest one is a finalist as well: should the simulator prefer it, it
    is the fastest, and its decisions are looked at.
    """
    finalists = Finalists(question)
    for candidate in _few(question, ranking.top(max(top, FINALISTS)), top):
        finalists.price(candidate)
    while True:
        best = finalists.ordered()[0]
        decisions = [
            replace(decision, other=decision.other and finalists.simulated(decision.other))
            for decision in explain_choice(question, ranking, best)
        ]
        if finalists.ordered()[0] is best:
            return finalists, decisions


def simulated_front(finalists: Finalists, front: Iterable[Candidate]) -> list[Candidate]:
    """Points of time against memory by the simulator, without those that others then beat; the last one is the fastest plan."""
    best = finalists.ordered()[0]
    points = [finalists.simulated(candidate) for candidate in front]
    points.append(Candidate(best.layout, best.step_s, best.memory_bytes))
    kept: list[Candidate] = []
    for point in sorted(points, key=lambda one: (one.peak_bytes, one.step_s)):
        if not kept or point.step_s < kept[-1].step_s:
            kept.append(point)
    return kept


def _few(question: Question, candidates: list[Candidate], top: int) -> list[Candidate]:
    """As many as can be simulated in a short time, and at least ``top``."""
    left = MAX_COMPUTATIONS
    few: list[Candidate] = []
    for candidate in candidates:
        layout = candidate.layout
        left -= 2 * layout.pp * layout.virtual_stages * question.space.workload.batch // (layout.dp * layout.mb)
        if left < 0 and len(few) >= top:
            break
        few.append(candidate)
    return few
