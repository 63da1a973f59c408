"""The answer of ``meshwright validate`` as text: every run, the sources, and what was skipped."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.render.text import Column, table
from meshwright.units import format_memory, format_seconds
from meshwright.validate.judge import Judged, Skipped
from meshwright.validate.report import KINDS, Report
from meshwright.validate.summary import by, errors

WORDS = {"step_s": "step", "tokens_per_s_per_gpu": "tokens/s/GPU", "tflops_per_gpu": "TFLOP/s/GPU", "mfu": "MFU", "memory_bytes": "memory"}

KIND_WORDS = {
    "dense": "dense, everything stated", "moe": "MoE, everything stated", "memory": "memory", "allocated": "memory, allocator's peak",
}  # fmt: skip


def validation_text(report: Report) -> str:
    """Tables of runs, of sources and of kinds; then rows that could not be judged, by reason."""
    parts = [_runs(report), _sources(report), _kinds(report)]
    if report.skipped:
        parts.append(_skipped(report.skipped))
    return "\n\n".join(parts)


def _runs(report: Report) -> str:
    columns: list[Column | str] = [
        "run",
        "metric",
        *(Column(header, right=True) for header in ("measured", "predicted", "90 % range", "error")),
        "assumed",
    ]
    rows = [
        (
            one.id + (" ?" if one.id in report.doubtful else ""), WORDS[one.metric], figure(one.metric, one.measured),
            figure(one.metric, one.predicted), f"{figure(one.metric, one.low)} - {figure(one.metric, one.high)}", f"{one.error:+.1%}",
            "; ".join(one.question.assumed),
        )
        for one in report.judged
    ]  # fmt: skip
    notes = (
        ["", "? the figure or its description is in doubt; such rows are left out of the summary unless it says so"]
        if report.doubtful
        else []
    )
    return table("", columns, rows, notes=notes)


def _sources(report: Report) -> str:
    columns: list[Column | str] = [
        "source",
        *(Column(header, right=True) for header in ("runs", "mean", "median", "p90", "worst", "bias", "in range")),
    ]
    return table(
        "time, by source", columns, [_line(name, group) for name, group in by(report.chosen("time"), lambda one: one.source).items()]
    )


def _kinds(report: Report) -> str:
    columns: list[Column | str] = [
        "",
        *(Column(header, right=True) for header in ("figures", "mean", "median", "p90", "worst", "bias", "in range")),
    ]
    rows = []
    for kind in KINDS:
        rows.append(_line(KIND_WORDS[kind], report.chosen(kind)))
        if report.doubtful:
            rows.append(_line(f"{KIND_WORDS[kind]}, doubtful rows too", report.chosen(kind, with_doubtful=True)))
        if report.runs_to_fit:
            rows.append(_line(f"{KIND_WORDS[kind]}, the runs below before", report.chosen(kind, report.same_before)))
            rows.append(_line(f"{KIND_WORDS[kind]}, calibrated on {report.runs_to_fit}", report.chosen(kind, report.calibrated)))
    found = report.summary()
    notes = [""]
    if report.naive:
        share = report.naive
        text = f"{share['mape']:.1%} mean, {share['median']:.1%} median, {share['p90']:.1%} p90"
        notes.append(f"constant utilisation per GPU generation and precision, of the other sources: {text} (dense)")
    if found["kernel_tables_only"]:
        share = found["kernel_tables_only"]
        notes.append(
            f"constants from kernel tables alone: {share['mape']:.1%} mean, {share['median']:.1%} median, {share['p90']:.1%} p90 (dense)"
        )
    if report.without_source:
        notes.append("each source is priced with constants that were fitted without it")
    counts = report.fit_counts
    notes.append(f"fits: {counts['predicted_to_run']} of {counts['ran']} runs that ran were predicted to")
    if counts["out_of_memory"]:
        notes.append(f"out of memory: {counts['predicted_out_of_memory']} of {counts['out_of_memory']} such runs were predicted not to fit")
    if found["ranking"]:
        order = found["ranking"]
        notes.append(
            f"order: {order['ordered']:.1%} of {order['pairs']} pairs of a source that differ by more than 3 %; "
            f"regret of the choice {order['regret']:.1%} over {order['choices']} choices"
        )
    return table("summary", columns, [row for row in rows if row[1]], notes=notes)


def _line(name: str, group: list[Judged]) -> tuple[object, ...]:
    found = errors(group)
    if found is None:
        return name, 0
    return (name, found.count, *(f"{value:.1%}" for value in (found.mape, found.median, found.p90, found.worst)), f"{found.bias:+.1%}",
            f"{found.covered:.0%}")  # fmt: skip


def _skipped(skipped: Iterable[Skipped]) -> str:
    """Rows with one reason on one line."""
    reasons: dict[str, list[str]] = {}
    for one in skipped:
        reasons.setdefault(one.why, []).append(one.id)
    rows = [(why, len(ids), ", ".join(ids) if len(ids) <= 6 else f"{ids[0]} .. {ids[-1]}") for why, ids in reasons.items()]
    return table("not judged", ["reason", Column("rows", right=True), "runs"], rows)


def figure(metric: str, value: float) -> str:
    """A figure in its metric's unit."""
    if metric == "step_s":
        return format_seconds(value)
    if metric == "memory_bytes":
        return format_memory(value)
    return f"{value:.1%}" if metric == "mfu" else f"{value:,.0f}"
