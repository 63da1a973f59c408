"""The verbs as functions: ``meshwright.plan(...)`` and its like, returning plain dataclasses.

Inputs are what the command line takes, a name or a path, or the objects themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from meshwright.api_tools import calibrate as calibrate
from meshwright.api_tools import catalog as catalog
from meshwright.api_tools import collectives as collectives
from meshwright.api_tools import validate as validate
from meshwright.api_tools import watch as watch
from meshwright.errors import InputError, Mistake
from meshwright.job import NEEDS, Asked, Job, default_workload, no_whole_numbers, resolve

if TYPE_CHECKING:
    from meshwright.diagnose.finding import Diagnosis
    from meshwright.estimate import Estimate
    from meshwright.explain.by_axis import AxisTable
    from meshwright.explain.compare import Candidate, Comparison
    from meshwright.explain.memory_report import MemoryReport
    from meshwright.explain.orders import OrderReport
    from meshwright.explain.ranks import RankReport
    from meshwright.explain.rows import Explanation
    from meshwright.explain.symbolic import SymbolicTable
    from meshwright.priced import Priced
    from meshwright.prove.certificate import Certificate
    from meshwright.search.plan import PlanAnswer, Progress
    from meshwright.spec.cluster import Cluster
    from meshwright.spec.layout import Layout
    from meshwright.spec.model import Model
    from meshwright.spec.plan_file import Plan
    from meshwright.spec.rules import LayoutWarning
    from meshwright.timeline.report import TimelineReport


class Said(TypedDict, total=False):
    """What may be said beside a model or a plan; see the options of the same names in ``meshwright estimate --help``."""

    cluster: str | Path | Cluster
    layout: str | Layout
    gpus: int
    seq: int
    batch: int
    precision: str
    memory_fraction: float
    stack: str


def plan(
    model: str | Path | Model, *, cluster: str | Path | Cluster | None = None, gpus: int | None = None, seq: int | None = None,
    batch: int | None = None, precision: str | None = None, stack: str | None = None, memory_fraction: float | None = None,
    constraints: Iterable[str] = (), top: int = 5, tokens: int | None = None, vocab_pad: int = 1,
    progress: Progress | None = None, source: str = "plan()",
) -> PlanAnswer:  # fmt: skip
    """Search all legal layouts: ``answer.plans[0].layout`` is the fastest, ``.step_s`` its seconds, ``.why`` the reasons.

    A saved plan may stand for the model; its workload then counts unless another is said. Without ``seq`` it is the
    model's longest up to 8,192 tokens; without ``batch`` about four million tokens a step.

    Raises:
        InputError: everything that is wrong with the inputs, together.
    """
    from meshwright.search.plan import plan as search

    asked = Asked(
        subject=model, cluster=cluster, gpus=gpus, seq=seq, batch=batch, precision=precision, stack=stack,
        memory_fraction=memory_fraction, source=source,
    )  # fmt: skip
    constraints = [constraints] if isinstance(constraints, str) else list(constraints)
    wrong = no_whole_numbers(source, asked.dashes, top=top, vocab_pad=vocab_pad)
    wrong += no_whole_numbers(source, asked.dashes, most=10**15, tokens=tokens)
    job = _planned(asked, constraints, wrong)
    assert job.cluster is not None and job.gpus is not None
    workload, assumed = (job.workload, []) if job.workload else default_workload(job.model, job.gpus, seq, batch, precision)
    answer = search(
        job.model, job.cluster, workload, job.gpus, job.stack if job.stated_stack else None, job.memory_fraction, constraints,
        top, tokens, vocab_pad, progress,
    )  # fmt: skip
    said = [*assumed, *job.assumed, *answer.assumed]
    return replace(answer, assumed=said, inputs=replace(job, workload=workload))


def _planned(asked: Asked, constraints: Iterable[str], mistakes: list[Mistake]) -> Job:
    """The inputs of a search; mistakes of the constraints, and those that are known already, are told with those of the rest."""
    from meshwright.search.constraints import parse_constraints

    job: Job | None = None
    try:
        job = resolve(asked, needs=("cluster",))
    except InputError as error:
        mistakes += error.mistakes
    try:
        parse_constraints(constraints, f"{asked.dashes}constraint")
    except InputError as error:
        mistakes += error.mistakes
    if asked.gpus is None and (job is None or job.gpus is None):
        mistakes.append(Mistake(asked.source, f"{asked.dashes}gpus", None, "a whole number from 1 to 10^8", problem="is missing"))
    if job is None or mistakes:
        raise InputError(mistakes)
    return job


def estimate(model: str | Path | Model | Plan, *, mfu_convention: str = "causal", **said: Unpack[Said]) -> Estimate:
    """Step time and its parts, MFU and memory of one layout.

    Raises:
        InputError: everything that is wrong with the inputs, together.
    """
    return candidates(_job("estimate()", model, said), mfu_convention)[0].estimate


def compare(
    model: str | Path | Model | Plan, layouts: Sequence[str | Layout], *, mfu_convention: str = "causal", **said: Unpack[Said]
) -> Comparison:
    """The estimates of several layouts, and in words what makes them differ. Raises InputError as ``estimate`` does."""
    from meshwright.explain.compare import compare as compared

    layouts = [layouts] if isinstance(layouts, str) else layouts
    job = resolve(replace(_asked("compare()", model, said), layouts=tuple(layouts)))
    return compared(candidates(job, mfu_convention))


@overload
def explain(
    model: str | Path | Model | Plan, *, layer: int | None = None, rank: int | None = None, phase: str | None = None,
    row: int | None = None, by: None = None, **said: Unpack[Said],
) -> Explanation: ...  # fmt: skip
@overload
def explain(
    model: str | Path | Model | Plan, *, by: Literal["axis"], rank: int | None = None, **said: Unpack[Said]
) -> AxisTable | SymbolicTable: ...
def explain(
    model: str | Path | Model | Plan, *, layer: int | None = None, rank: int | None = None, phase: str | None = None,
    row: int | None = None, by: Literal["axis"] | None = None, **said: Unpack[Said],
) -> Explanation | AxisTable | SymbolicTable:  # fmt: skip
    """What one rank holds, computes and sends: row by row, or summed by axis; by axis without a layout, in letters.

    Raises:
        InputError: everything that is wrong with the inputs, together; no such rank, layer, phase or row.
    """
    wrong = no_whole_numbers("explain()", least=0, layer=layer, rank=rank, row=row)
    if by not in (None, "axis"):
        wrong.append(Mistake("explain()", "by", by, "axis, or None for rows"))
    if wrong:
        raise InputError(wrong)
    if by == "axis":
        return explained_by_axis(_job("explain()", model, said, needs=NEEDS if "layout" in said else ()), rank)
    from meshwright.explain.rows import explain_rows

    job = _job("explain()", model, said)
    return explain_rows(numbers_of(job), rank, layer, phase, row, warnings_of(job))


def memory(model: str | Path | Model | Plan, **said: Unpack[Said]) -> MemoryReport:
    """Memory by stage and category, and what holds the peak. Raises InputError as ``estimate`` does."""
    return memory_of(_job("memory()", model, said))


def ranks(model: str | Path | Model | Plan, **said: Unpack[Said]) -> RankReport:
    """The groups of every axis and the network tier that they span. Raises InputError as ``estimate`` does."""
    return ranks_of(_job("ranks()", model, said, needs=("cluster", "layout")))


def orders(model: str | Path | Model | Plan, **said: Unpack[Said]) -> OrderReport:
    """Every order of the axes of a layout, priced, the fastest first. Raises InputError as ``estimate`` does."""
    return orders_of(_job("orders()", model, said))


def timeline(
    model: str | Path | Model | Plan, *, slow: str | Sequence[str] = (), schedule: Path | None = None, **said: Unpack[Said]
) -> TimelineReport:
    """One step simulated: who computes, waits and sends when; with ``slow="stage=3 x1.3"``, what that does to all.

    Args:
        schedule: a file with the order of the pipeline stages, in torch's CSV format, in place of the layout's schedule.

    Raises:
        InputError: as ``estimate`` does; a slowness that is not understood, or a stage, rank or link that there is not; a schedule that is
            impossible or not for this layout.
    """
    return timeline_of(_job("timeline()", model, said), [slow] if isinstance(slow, str) else slow, "timeline()", schedule)


def prove(
    model: str | Path | Model | Plan, *, ranks: int = 8, dtype: str = "float64", steps: int = 3, seed: int = 1,
    record: Path | None = None, dry: bool = False, schedule: Path | None = None, **said: Unpack[Said],
) -> Certificate:  # fmt: skip
    """Run the layout on processes of this machine, and compare with one device and with the ledger.

    Args:
        ranks: processes to run on; a larger layout is scaled down to them. record: a folder that keeps the recordings.
        dry: the true sizes and all distinct ranks, without numbers.
        schedule: a file with the order of the pipeline stages, in torch's CSV format, in place of the layout's schedule.

    Raises:
        InputError: everything that is wrong with the inputs; torch is not installed; the layout cannot be scaled to the processes.
    """
    asked = _asked("prove()", model, said)
    if wrong := no_whole_numbers("prove()", ranks=ranks, steps=steps) + no_whole_numbers("prove()", least=0, seed=seed):
        raise InputError(wrong)
    return certificate_of(resolve(asked, PROOF_NEEDS), ranks, dtype, steps, seed, record, dry, f"{asked.source}: dtype", schedule)


PROOF_NEEDS = ("workload", "layout")


def certificate_of(
    job: Job, ranks: int, dtype: str, steps: int, seed: int, record: Path | None, dry: bool, source: str = "--dtype",
    schedule: Path | None = None,
) -> Certificate:  # fmt: skip
    """What ``prove`` returns, of a job. The plan's hash is that of a saved plan, hence it needs a cluster."""
    from meshwright.prove.question import DTYPES, Question
    from meshwright.schedule import read_csv

    if dtype not in DTYPES:
        raise InputError([Mistake(source, "dtype", dtype, ", ".join(DTYPES))])
    assert job.workload is not None
    question = Question(
        model=job.model, workload=job.workload, layout=job.layout, ranks=ranks, dtype=dtype, steps=steps, seed=seed,
        plan_hash=hash_of(job), folder=record, schedule=None if schedule is None else read_csv(schedule),
    )  # fmt: skip
    if dry:
        from meshwright.prove.dry import prove_dry

        return prove_dry(question)
    from meshwright.prove.run import prove

    return prove(question)


def hash_of(job: Job) -> str:
    """The hash of the plan that this job would be saved as; "" without a cluster."""
    from meshwright.spec.plan_file import plan_hash

    return "" if job.cluster is None or job.workload is None else plan_hash(plan_of(job, job.layout))


def plan_of(job: Job, layout: Layout) -> Plan:
    """What is saved of a job with this layout, which may be one of a search."""
    from meshwright.spec.plan_file import Plan

    assert job.cluster is not None and job.workload is not None
    stack = job.stack.said if job.stated_stack else ""
    return Plan(
        model=job.model, cluster=job.cluster, workload=job.workload, layout=layout, stack=stack,
        calibrated=job.stack if stack and job.stack.file else None, memory_fraction=job.memory_fraction,
    )  # fmt: skip


def candidates(job: Job, mfu_convention: str = "causal") -> list[Candidate]:
    """Everything that is known of each of the job's layouts."""
    from meshwright.estimate import estimate_of
    from meshwright.explain.compare import Candidate
    from meshwright.model_flops import CONVENTIONS

    if mfu_convention not in CONVENTIONS:
        raise InputError([Mistake("estimate()", "mfu_convention", mfu_convention, ", ".join(CONVENTIONS))])
    found: list[Candidate] = []
    for index in range(len(job.layouts)):
        numbers, warnings = numbers_of(job, index), warnings_of(job, index)
        one = estimate_of(numbers, job.memory_fraction, mfu_convention)
        one = replace(one, assumed=[*job.assumed, *one.assumed], warnings=warnings)
        found.append(Candidate(one, numbers, job.memory_fraction, tuple(warnings)))
    return found


def explained_by_axis(job: Job, rank: int | None) -> AxisTable | SymbolicTable:
    """The table of a layout, or of a model in letters where no layout was said."""
    if not job.layouts:
        from meshwright.explain.symbolic import explain_symbolically

        return explain_symbolically(job.model)
    from meshwright.explain.by_axis import explain_by_axis

    return explain_by_axis(numbers_of(job), rank, warnings_of(job))


def memory_of(job: Job) -> MemoryReport:
    """The report of the job's layout."""
    from meshwright.explain.memory_report import report_memory

    return report_memory(numbers_of(job), job.memory_fraction, warnings_of(job))


def ranks_of(job: Job) -> RankReport:
    """The report of the job's layout."""
    from meshwright.explain.ranks import explain_ranks

    assert job.cluster is not None
    return explain_ranks(job.model, job.layout, job.cluster, warnings_of(job))


def orders_of(job: Job) -> OrderReport:
    """The orders of the job's layout."""
    from meshwright.explain.orders import explain_orders

    assert job.cluster is not None and job.workload is not None
    return explain_orders(job.model, job.cluster, job.workload, job.layout, job.stack)


def timeline_of(job: Job, slow: Sequence[str] = (), source: str = "--slow", schedule: Path | None = None) -> TimelineReport:
    """The simulated step of the job's layout. schedule: a file with the order of its stages, in torch's CSV format."""
    from meshwright.schedule import read_csv
    from meshwright.timeline.report import report_timeline

    order = None if schedule is None else read_csv(schedule)
    return report_timeline(numbers_of(job), slow, warnings_of(job), source, order)


def diagnose(*paths: str | Path, plan: str | Path | Plan | None = None) -> Diagnosis:
    """Which rank, which collective, which cause: from files that a job left behind, or folders of them.

    ``answer.findings[0]`` is the headline, ``.verdict`` fault, healthy or inconclusive. ``plan`` is what the job was planned to do.

    Raises:
        InputError: none of the files can be read, or the plan is wrong.
    """
    from meshwright.diagnose.judge import diagnose as diagnosed

    job = None if plan is None else resolve(Asked(subject=plan, source="diagnose()", dashes=""))
    return diagnosed([Path(path) for path in paths], job)


def lint(path: str | Path, *, cluster: str | None = None, gpus: int | None = None) -> Diagnosis:
    """What is wrong or silly about the job that a launch script or a config starts; nothing of it is executed.

    Args:
        path: a shell script, a torchtitan job file, a DeepSpeed or an Accelerate config.
        cluster: to judge by its links. gpus: where the file does not say.

    Raises:
        InputError: the file cannot be read or starts no job that is known; no such cluster.
    """
    from meshwright.lint.judge import lint as linted

    return linted(Path(path), cluster, gpus)


def numbers_of(job: Job, index: int = 0) -> Priced:
    """The priced ledger of one of the job's layouts."""
    from meshwright.estimate import priced

    assert job.cluster is not None and job.workload is not None
    return priced(job.model, job.cluster, job.workload, job.layouts[index], job.stack)


def warnings_of(job: Job, index: int = 0) -> list[LayoutWarning]:
    """What is silly about one of the layouts, and what the stack that the user chose cannot express of it."""
    from meshwright.search.runs_on import FRAMEWORKS, obstacles
    from meshwright.spec.rules import LayoutWarning

    found = list(job.warnings[index])
    name = job.stack.framework
    if job.stated_stack and name in FRAMEWORKS:
        for limit in obstacles(name, job.layouts[index], job.model):
            message = f"{name} cannot express this layout's {limit.key}: it can {limit.legal}"
            found.append(LayoutWarning(code="stack", message=message, remedy=f"another {limit.key}, or another --stack"))
    return found


def _job(source: str, model: str | Path | Model | Plan, said: Said, needs: Sequence[str] = NEEDS) -> Job:
    return resolve(_asked(source, model, said), needs)


def _asked(source: str, model: str | Path | Model | Plan, said: Said) -> Asked:
    rest = {key: value for key, value in said.items() if key != "layout"}
    layout = said.get("layout")
    return Asked(subject=model, layouts=() if layout is None else (layout,), source=source, dashes="", **rest)  # type: ignore[arg-type]
