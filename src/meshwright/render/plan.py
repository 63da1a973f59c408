"""The answer of ``plan`` as text: the fastest layouts, why the first, the best of each framework, time against memory."""

from __future__ import annotations

from meshwright.render.text import Column, table, wrapped
from meshwright.search.plan import PlanAnswer, Ranked
from meshwright.search.runs_on import FRAMEWORKS
from meshwright.units import format_count, format_memory, format_seconds


def plan_text(answer: PlanAnswer, title: str) -> str:
    """Everything, or what was nearest where nothing fits."""
    if answer.nearest is not None:
        return "\n".join([title, "", _nearest(answer), "", _counts(answer)])
    parts = [_ranking(answer, title), _why(answer)]
    if answer.best_by_stack:
        parts.append(_by_stack(answer))
    parts += [_front(answer), _notes(answer)]
    return "\n\n".join(parts)


def _row(number: str, ranked: Ranked) -> list[str]:
    each = ranked.estimate
    spread = f"{format_seconds(each.step_s_low)} - {format_seconds(each.step_s_high)}"
    return [
        number, str(each.layout), format_seconds(each.step_s), spread, f"{100 * each.mfu:.1f}%",
        format_memory(each.memory_bytes), " ".join(ranked.runs_on),
    ]  # fmt: skip


HEADERS: list[Column | str] = [
    Column("", fold=False), "layout", Column("step", right=True, fold=False), Column("range", right=True, fold=False),
    Column("MFU", right=True, fold=False), Column("peak", right=True, fold=False), "runs on",
]  # fmt: skip


def _ranking(answer: PlanAnswer, title: str) -> str:
    """Near-ties of the first share its number."""
    rows = [_row("1=" if ranked.near_tie and place > 1 else str(place), ranked) for place, ranked in enumerate(answer.plans, start=1)]
    notes = ["", "1= : within 1 % of the first, which no estimate can tell apart."] if any(row[0] == "1=" for row in rows) else []
    return table(title, HEADERS, rows, notes=notes)


def _why(answer: PlanAnswer) -> str:
    best = answer.plans[0].estimate
    lines = [f"Why {best.layout}", ""]
    for number, decision in enumerate(answer.decisions, start=1):
        lines += wrapped(decision.sentence(best.step_s), f"{number:3}. ")
    return "\n".join(lines)


def _by_stack(answer: PlanAnswer) -> str:
    rows = [_row(name, ranked) for name, ranked in answer.best_by_stack.items()]
    headers: list[Column | str] = [Column("stack", fold=False), *HEADERS[1:-1]]
    missing = [name for name in FRAMEWORKS if name not in answer.best_by_stack]
    notes = [f"{', '.join(missing)}: nothing that it can express fits, of what was tried"] if missing else []
    notes = ["", *notes, *faster] if (faster := _faster_than_first(answer)) or notes else []
    return table("Best for each framework, priced with its own kernels and overlap", headers, [row[:-1] for row in rows], notes=notes)


def _faster_than_first(answer: PlanAnswer) -> list[str]:
    """Why a framework's best may be ahead of the first plan, which is the best of what can be run to train."""
    found = []
    for name, ranked in answer.best_by_stack.items():
        layout = ranked.estimate.layout
        if ranked.step_s < answer.plans[0].step_s and ranked.runs_on == ("meshwright",) and layout.pp > 1:
            pipeline = f"a pipeline ({layout.schedule}, zero={layout.zero}) that no framework for training has"
            found += wrapped(
                f"{name} is ahead of plan 1 with {pipeline}: this project's own runtime carries it out to prove it, and the plans leave"
                f" it out unless `--constraint schedule={layout.schedule}` asks for it"
            )
    return found


def _front(answer: PlanAnswer) -> str:
    """The last point is the fastest; each one above trades time for memory."""
    fastest = answer.front[-1].step_s
    width = 30
    rows = [
        [format_memory(point.peak_bytes), format_seconds(point.step_s), "#" * round(width * fastest / point.step_s), str(point.layout)]
        for point in answer.front
    ]
    numbers = [Column(name, right=True, fold=False) for name in ("peak", "step")]
    headers: list[Column | str] = [*numbers, Column("speed", fold=False), "layout"]
    return table("Time against memory: nothing is faster in less", headers, rows)


def _notes(answer: PlanAnswer) -> str:
    lines = [_counts(answer)]
    if answer.gap is not None:
        lines.append(
            f"steps are simulated; the formula that orders the search is at most {abs(answer.gap.relative):.2%} off on these finalists"
        )
    if answer.run is not None:
        run = answer.run
        lines.append(
            f"{format_count(run.tokens)} tokens: {run.steps:,} steps, {run.days:,.1f} days, {format_count(run.gpu_hours)} GPU-hours on "
            f"{answer.gpus:,} GPUs"
        )
    for each in answer.assumed:
        lines += wrapped(each, "assumed: ")
    for warning in [*answer.warnings, *answer.plans[0].estimate.warnings]:
        lines += wrapped(f"{warning.message}; {warning.remedy}", "warning: ")
    return "\n".join(lines)


def _counts(answer: PlanAnswer) -> str:
    rate = answer.evaluated / answer.seconds
    return (
        f"{answer.enumerated:,} layouts enumerated, {answer.evaluated:,} evaluated, {answer.feasible:,} fit; "
        f"{answer.seconds:.1f} s, {format_count(rate)} layouts per second"
    )


def _nearest(answer: PlanAnswer) -> str:
    near = answer.nearest
    assert near is not None
    over = near.memory_bytes - near.allowed_bytes
    lines = [
        "Nothing fits.",
        f"Nearest: {near.layout} needs {format_memory(near.memory_bytes)} where {format_memory(near.allowed_bytes)} may be used: "
        f"{format_memory(over)} too much.",
        "What would fit:",
        *(f"  - {hint}" for hint in near.would_fit),
    ]
    return "\n".join(lines)
