"""Price a run and set the prediction beside what was measured, in the row's own metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import exp
from typing import Any

from meshwright.errors import InputError
from meshwright.estimate import Estimate, device_peak, estimate
from meshwright.model_flops import flops_per_token
from meshwright.spec.efficiency import fitted, prior, sources
from meshwright.validate.measured import Figure
from meshwright.validate.question import Question, question_of
from meshwright.validate.runs import Run, Unjudgeable

Price = Callable[[Question], Estimate]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One figure of one run.

    Attributes:
        predicted, low, high: in the metric's unit; low and high are the ends of the 90 % range.
        question: the inputs; step_s: the predicted step time.
    """

    id: str
    metric: str
    measured: float
    predicted: float
    low: float
    high: float
    step_s: float
    question: Question

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def source(self) -> str:
        return self.question.run.source

    @property
    def is_time(self) -> bool:
        return self.metric != "memory_bytes"

    @property
    def covered(self) -> bool:
        """Whether the range holds what was measured."""
        return self.low <= self.measured <= self.high

    def as_json(self) -> dict[str, Any]:
        """The keys of DESIGN section 7, the range, and what was assumed."""
        return {
            "id": self.id, "metric": self.metric, "measured": self.measured, "predicted": self.predicted, "error": self.error,
            "low": self.low, "high": self.high, "source": self.source, "layout": str(self.question.layout),
            "stack": self.question.stack.name, "assumed": list(self.question.assumed),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a run was predicted to fit, and whether it did.

    Attributes:
        needed_bytes: predicted peak with context and communication buffers. memory_bytes: of the device.
    """

    id: str
    ran: bool
    needed_bytes: float
    memory_bytes: int

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory_bytes

    def as_json(self) -> dict[str, Any]:
        """Both verdicts, and the bytes."""
        return {"id": self.id, "ran": self.ran, "fits": self.fits, "needed_bytes": self.needed_bytes, "memory_bytes": self.memory_bytes}


@dataclass(frozen=True)
class Skipped:
    """A row that cannot be judged, and why."""

    id: str
    why: str


def questions_of(runs: Iterable[Run]) -> tuple[list[Question], list[Skipped]]:
    """Every row as a question, or the reason why it is none."""
    questions: list[Question] = []
    skipped: list[Skipped] = []
    for run in runs:
        try:
            question = question_of(run)
            fast_price(question)  # what the price refuses is a reason like any other
            questions.append(question)
        except (Unjudgeable, InputError, ValueError) as why:
            skipped.append(Skipped(run.id, " ".join(str(why).split())[:200]))
    return questions, skipped


def plain_price(question: Question) -> Estimate:
    """The estimate that ``meshwright estimate`` prints."""
    return estimate(question.model, question.cluster, question.workload, question.layout, question.stack)


def fast_price(question: Question) -> Estimate:
    """The same with the step in closed form, for pages and tests that price every run several times."""
    return estimate(question.model, question.cluster, question.workload, question.layout, question.stack, closed_form=True)


def left_out(question: Question) -> Question:
    """The question with the constants that were fitted without its source, if there are such."""
    source = question.run.source
    if source not in sources():
        return question
    return replace(question, stack=replace(question.stack, efficiency=fitted(source)))


def uncalibrated(question: Question) -> Question:
    """The question with what kernel tables alone say."""
    return replace(question, stack=replace(question.stack, efficiency=prior()))


def judge(question: Question, price: Price = plain_price) -> list[Judged]:
    """The run's time and memory, as far as they were measured."""
    found = price(question)
    return [_judged(question, figure, found) for figure in question.figures]


def fit_of(question: Question, price: Price = plain_price) -> Fit:
    """Whether the run was predicted to fit: the whole device, not the part that a plan may fill."""
    found, device = price(question), question.cluster.device
    needed = float(found.memory_bytes + found.reserved_bytes)
    return Fit(id=question.id, ran=not question.out_of_memory, needed_bytes=needed, memory_bytes=device.memory_bytes)


def _judged(question: Question, figure: Figure, found: Estimate) -> Judged:
    """A throughput's range is the step's turned round."""
    if figure.metric == "memory_bytes":
        low, middle, high = memory_range(question, figure, found)
    else:
        low, middle, high = (figure_of(question, figure, step_s) for step_s in (found.step_s_low, found.step_s, found.step_s_high))
    return Judged(
        id=question.run.id, metric=figure.metric, measured=figure.value, predicted=middle, low=min(low, high), high=max(low, high),
        step_s=found.step_s, question=question,
    )  # fmt: skip


MEMORY_SPREAD = 0.10
"""Half width of a memory figure's range: 90 % of the allocator peaks of published runs (docs/validation.md)."""


FRAGMENTS = 0.06
"""Cache and fragments over the allocator's peak: 0.05 to 0.12 in torchtitan's tables of 2024, which print what is reserved."""


def memory_range(question: Question, figure: Figure, found: Estimate) -> tuple[float, float, float]:
    """Low, middle and high; a figure of nvidia-smi has context and communication buffers in it."""
    middle = found.memory_bytes * (1.0 if figure.kind in ("allocated", "unsaid") else 1.0 + FRAGMENTS)
    middle += found.reserved_bytes if figure.kind == "device" else 0
    return middle * (1 - MEMORY_SPREAD), float(middle), middle * (1 + MEMORY_SPREAD)


def figure_of(question: Question, figure: Figure, step_s: float) -> float:
    """A predicted step in a figure's metric; in the flops that the source itself counted where it tells the step time."""
    if figure.metric == "step_s":
        return step_s
    tokens_per_s = question.workload.batch * question.workload.seq / (step_s * question.layout.world_size)
    if figure.metric == "tokens_per_s_per_gpu":
        return tokens_per_s
    if figure.step_s is not None:
        return figure.value * figure.step_s / step_s
    flops_per_s = tokens_per_s * flops_per_token(question.model, question.workload.seq, figure.convention)
    if figure.metric == "tflops_per_gpu":
        return flops_per_s / 1e12
    return flops_per_s / device_peak(question.model, question.cluster, "bf16")


def ranged(one: Judged, half_width: float) -> Judged:
    """The same with a range of ``half_width`` on each side, in the logarithm."""
    width = exp(half_width)
    return replace(one, low=one.predicted / width, high=one.predicted * width)
