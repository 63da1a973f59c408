"""``plan``: search all legal layouts, rank what fits, and say why the first is first.

Finalists are priced by ``estimate`` itself (finalists.py), so that a plan and an estimate of its layout are one number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from meshwright.errors import InputError, MeshwrightError, NoAnswer
from meshwright.estimate import MEMORY_FRACTION, Estimate
from meshwright.search.batch import awkward_batch
from meshwright.search.constraints import Condition, parse_constraints
from meshwright.search.evaluate import Found, Question
from meshwright.search.finalists import Finalists, Gap, final_round, price, simulated_front
from meshwright.search.parallel import beside, evaluate_all
from meshwright.search.rank import Candidate, Ranking
from meshwright.search.runs_on import FRAMEWORKS, expressible, runnable, runnable_schedules, runs_on
from meshwright.search.space import Column, Space
from meshwright.search.why import Decision, in_words
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.rules import check
from meshwright.spec.rules.rule import LayoutWarning
from meshwright.spec.stack import DEFAULT_STACK, STACKS, Stack
from meshwright.spec.workload import Training

NEAR_TIE = 0.01
"""Plans within one percent are a near-tie: no estimate tells them apart (docs/validation.md)."""

FRONT_LENGTH = 10

TRIED = 5
"""Layouts of one kind that are priced for another stack before the kind is given up as too large for it."""

Progress = Callable[[int, int, Found], None]


@dataclass(frozen=True)
class Ranked:
    """One plan of the answer; ``closed_form_step_s`` is the step by which the search found it, where it did."""

    estimate: Estimate
    runs_on: tuple[str, ...]
    why: str
    near_tie: bool
    closed_form_step_s: float | None = None

    @property
    def layout(self) -> Layout:
        return self.estimate.layout

    @property
    def step_s(self) -> float:
        return self.estimate.step_s

    def as_json(self) -> dict[str, Any]:
        """The keys of DESIGN section 7, and what the estimate has beside them."""
        own = {"why": self.why, "runs_on": list(self.runs_on), "near_tie": self.near_tie, "closed_form_step_s": self.closed_form_step_s}
        return {**self.estimate.as_json(), **own}


@dataclass(frozen=True)
class Run:
    """A training run of so many tokens at the pace of the first plan."""

    tokens: int
    steps: int
    days: float
    gpu_hours: float


@dataclass(frozen=True)
class Nearest:
    """What overshoots least where nothing fits, and what would make it fit."""

    layout: Layout
    memory_bytes: int
    allowed_bytes: int
    would_fit: list[str]

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "layout": str(self.layout), "over_bytes": self.memory_bytes - self.allowed_bytes}


@dataclass(frozen=True)
class PlanAnswer:
    """The answer of ``plan``.

    Attributes:
        plans: the fastest, best first. best_by_stack: for each framework its fastest, priced as that framework runs it.
        front: (layout, step_s, memory_bytes) that nothing beats in both.
        enumerated: legal layouts of the space. evaluated: priced, or rejected by the memory formula.
        warnings: of the question itself; those of a layout are its estimate's.
        gap: the largest between the formula that orders the search and the simulator, of all that were simulated.
    """

    plans: list[Ranked]
    best_by_stack: dict[str, Ranked]
    front: list[Candidate]
    decisions: list[Decision]
    enumerated: int
    evaluated: int
    feasible: int
    seconds: float
    run: Run | None = None
    nearest: Nearest | None = None
    gap: Gap | None = None
    warnings: list[LayoutWarning] = field(default_factory=list)
    gpus: int = 0
    assumed: list[str] = field(default_factory=list)
    inputs: Any = None

    def as_json(self) -> dict[str, Any]:
        """The keys of DESIGN section 7."""
        counts = {"enumerated": self.enumerated, "evaluated": self.evaluated, "feasible": self.feasible, "seconds": self.seconds}
        if self.nearest is not None:
            return {"plans": [], "nearest": self.nearest.as_json(), **counts}
        front = [{"layout": str(c.layout), "step_s": c.step_s, "memory_bytes": int(c.peak_bytes)} for c in self.front]
        return {
            "plans": [ranked.as_json() for ranked in self.plans],
            "best_by_stack": {name: ranked.as_json() for name, ranked in self.best_by_stack.items()},
            "pareto": front,
            "run": None if self.run is None else vars(self.run),
            "warnings": [warning.as_json() for warning in self.warnings],
            "largest_gap": None if self.gap is None else self.gap.as_json(),
            **counts,
        }


def plan(
    model: Model, cluster: Cluster, workload: Training, gpus: int, stack: Stack | None = None,
    memory_fraction: float = MEMORY_FRACTION, constraints: Iterable[str] = (), top: int = 5, tokens: int | None = None,
    vocab_pad: int = 1, progress: Progress | None = None,
) -> PlanAnswer:  # fmt: skip
    """Search every legal layout of a model on a number of GPUs.

    All of them are priced; those that no framework can run (runs_on.py) are not shown, unless a constraint names the schedule.

    Args:
        stack: price as this stack runs, and only what its framework can express; None for all, priced as DEFAULT_STACK.
        constraints: e.g. ``["tp<=8", "pp=1"]`` (search/constraints.py). top: plans to return.
        tokens: of a whole training run, for days and GPU-hours.

    Raises:
        InputError: a constraint that is not of the form.
    """
    started = time.perf_counter()
    constraints = tuple(constraints)
    wanted = _wanted(model, parse_constraints(constraints), stack)
    question = Question(Space(model, workload, gpus, vocab_pad), cluster, stack or STACKS[DEFAULT_STACK], memory_fraction, wanted)
    found = evaluate_all(question, progress)
    if not found.enumerated:
        raise _nothing_legal(question)
    if not found.segments:
        nearest = _nearest(question, found)
        return PlanAnswer([], {}, [], [], found.enumerated, found.evaluated, 0, time.perf_counter() - started, nearest=nearest, gpus=gpus)
    ranking = _ranking(question, found, " ".join(constraints))
    finalists, decisions = final_round(question, ranking, top)
    priced = finalists.ordered()[:top]
    why = in_words(decisions, priced[0].step_s)
    plans = [_ranked(finalists, each, why if each is priced[0] else _against(each, priced[0])) for each in priced]
    frameworks = None if stack else beside(partial(_best_by_stack, finalists, ranking), len(found.segments))
    front = simulated_front(finalists, _thin(ranking.front()))
    by_stack = frameworks() if frameworks else {}
    return PlanAnswer(
        plans, by_stack, front, decisions, found.enumerated, found.evaluated, found.feasible, time.perf_counter() - started,
        run=_run(tokens, workload, priced[0], gpus), gap=finalists.largest_gap, warnings=_warnings(workload, gpus), gpus=gpus,
        assumed=priced[0].assumed,
    )  # fmt: skip


def _warnings(workload: Training, gpus: int) -> list[LayoutWarning]:
    awkward = awkward_batch(workload.batch, gpus)
    return [] if awkward is None else [awkward]


def _ranking(question: Question, found: Found, constraints: str) -> Ranking:
    """Of what fits, what can be run and makes sense; all of it where the user asks for it, or where nothing else is left.

    Left out: schedules that no framework has; and selective recomputation beside flash attention, which keeps no scores
    that could be dropped: it costs the core once more and saves nothing. Of striped and zigzag context parallelism, which take the
    same time and memory, zigzag stands for both: more frameworks have it.
    """
    everything = Ranking(found.segments)
    model = question.space.model
    schedules = runnable_schedules(model)
    useless = "selective" if question.stack.attention_kernel != "none" and "recompute" not in constraints else ""
    if "schedule" in constraints:
        return everything
    segments = [
        segment
        for segment in found.segments
        if (segment.column.pp == 1 or segment.column.schedule in schedules) and segment.column.recompute != useless
    ]
    twins = "striped" in constraints or "zigzag" in constraints
    ranking = Ranking(segments, partial(_is_listed, question=question, twins=twins))
    return ranking if segments and ranking.best() is not None else everything


def _is_listed(column: Column, question: Question, twins: bool) -> Any:
    found = runnable(column, question.space.model)  # type: ignore[arg-type]
    return found if twins else found & _is_first_of_twins(column, question)


def _is_first_of_twins(column: Column, question: Question) -> Any:
    """False for a striped layout where the zigzag one beside it is legal (spec/rules/context.py)."""
    return (column.cp_kind != "striped") | (column.cp == 1) | (question.space.workload.seq % (2 * column.cp) != 0)


def _wanted(model: Model, constraint: Condition, stack: Stack | None) -> Condition:
    framework = stack.framework if stack and stack.framework in FRAMEWORKS else None
    if framework is None:
        return constraint
    return lambda column: constraint(column) & expressible(framework, column, model)  # type: ignore[arg-type]


def _ranked(finalists: Finalists, each: Estimate, why: str) -> Ranked:
    model, best_s = finalists.question.space.model, finalists.ordered()[0].step_s
    near_tie = each.step_s <= best_s * (1 + NEAR_TIE)
    return Ranked(each, runs_on(each.layout, model), why, near_tie, finalists.closed_form_step_s(each.layout))


def _against(each: Estimate, best: Estimate) -> str:
    """What makes a plan slower than the first: the parts of the step that grew, the largest first."""
    grown = sorted(((each.parts[part] - best.parts[part], part) for part in each.parts), reverse=True)
    slower = 100 * (each.step_s / best.step_s - 1)
    causes = [f"{part.removesuffix('_s')} +{1e3 * more:.0f} ms" for more, part in grown if more > 0.001 * best.step_s][:3]
    return f"+{slower:.2f} % against the first" + (f": {', '.join(causes)}" if causes else "")


def _best_by_stack(finalists: Finalists, ranking: Ranking) -> dict[str, Ranked]:
    """The fastest that each framework can express, priced with its own kernels and overlap.

    The search has priced all layouts as one stack runs them. Another one's overlap and memory reorder ZeRO stages, recompute
    policies, and pipelines against none; so the leaders of each of these are priced again, until one of them fits. What fits
    only as the framework itself keeps tensors is not among them: ``plan --stack`` searches for one framework exactly.
    """
    question = finalists.question
    model = question.space.model
    best: dict[str, Ranked] = {}
    everything = ranking.whole(partial(_is_first_of_twins, question=question))
    for framework in FRAMEWORKS:
        own = replace(question, stack=STACKS[framework])
        leaders = everything.leaders(TRIED, _what_stacks_reorder, partial(expressible, framework, model=model))
        tried = [_first_fit(own, candidates) for candidates in leaders]
        if own.stack == question.stack:
            tried += [each for each in finalists.ordered() if framework in runs_on(each.layout, model)]
        found = [each for each in tried if each is not None]
        if found:
            fastest = min(found, key=lambda each: (each.step_s, each.memory_bytes))
            best[framework] = replace(_ranked(finalists, fastest, ""), closed_form_step_s=None)
    return best


def _what_stacks_reorder(column: Column) -> Hashable:
    return column.zero, column.zero_variant, column.recompute, column.pp > 1


def _first_fit(question: Question, candidates: list[Candidate]) -> Estimate | None:
    priced = (price(question, candidate.layout) for candidate in candidates)
    return next((each for each in priced if each.fits), None)


def _thin(front: list[Candidate]) -> list[Candidate]:
    """At most FRONT_LENGTH points, both ends kept."""
    if len(front) <= FRONT_LENGTH:
        return front
    last = len(front) - 1
    return [front[round(index * last / (FRONT_LENGTH - 1))] for index in range(FRONT_LENGTH)]


def _run(tokens: int | None, workload: Training, best: Estimate, gpus: int) -> Run | None:
    if tokens is None:
        return None
    steps = -(-tokens // (workload.batch * workload.seq))
    seconds = steps * best.step_s
    return Run(tokens, steps, seconds / 86_400, seconds * gpus / 3_600)


def _nothing_legal(question: Question) -> MeshwrightError:
    """Why there is no layout at all: what is wrong with the simplest one, or else what the user wants of it."""
    space = question.space
    try:
        check(space.model, space.workload, Layout(dp_shard=space.gpus), question.cluster, space.gpus, file="command line")
    except InputError as error:
        return error
    return NoAnswer(
        "No legal layout is what --constraint (or --stack) asks for. `meshwright estimate` with such a layout says which rule refuses it.",
        {"plans": [], "nearest": None},
    )


def _nearest(question: Question, found: Found) -> Nearest | None:
    """How far off the nearest layout is, and which change makes something fit: more GPUs, or more memory."""
    if found.nearest is None:
        return None
    column, index, peak = found.nearest
    device = question.cluster.device
    allowed = int(question.memory_fraction * device.memory_bytes) - device.reserved_bytes
    hints = [f"a device with {(peak + device.reserved_bytes) / question.memory_fraction / 2**30:.0f} GiB"]
    for factor in (2, 4, 8, 16, 32):
        gpus = question.space.gpus * factor
        more = evaluate_all(replace(question, space=replace(question.space, gpus=gpus)))
        if more.segments:
            best = Ranking(more.segments).best()
            assert best is not None
            hints.insert(0, f"{gpus} GPUs: {best.layout}")
            break
    return Nearest(column.layout(index), int(peak), allowed, hints)
