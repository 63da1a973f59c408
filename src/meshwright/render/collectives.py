"""The answer of ``meshwright collectives`` as text: a table of algorithms, where they cross over, and time over size."""

from __future__ import annotations

import math

from meshwright.collectives.report import MAX_RANKS, AlgorithmRow, CollectiveReport
from meshwright.render.text import Column, table
from meshwright.units import format_memory, format_seconds, format_traffic

BAR = 50
"""Columns of the plot's longest bar."""


def collectives_text(report: CollectiveReport) -> str:
    """One screen of text."""
    return "\n\n".join(part for part in (_table(report), _changes(report), _plot(report)) if part)


def _table(report: CollectiveReport) -> str:
    where = f" on {report.cluster}" if report.cluster else ""
    title = f"{report.op} of {format_memory(report.size_bytes)} over {report.ranks:,} ranks{where}"
    priced = any(row.time_s is not None for row in report.algorithms)
    times = [Column("time", right=True), Column("of it latency", right=True)] if priced else []
    numbers = [Column(header, right=True) for header in ("steps", "busiest rank sends", "counted")]
    rows = [_cells(row, report.best, priced) for row in report.algorithms]
    notes = []
    if report.priced_s is not None:
        notes.append(f"* fastest of these; plans are priced with {format_seconds(report.priced_s)}, the best of what NCCL has")
    if any(row.executed for row in report.algorithms):
        notes.append("executed on local processes against torch's own collective, float64 and int64; bytes counted from their messages")
    elif report.ranks > MAX_RANKS:
        has = "; only NCCL's algorithms have a time then" if priced else ""
        notes.append(f"more than {MAX_RANKS} ranks are not written out step by step: steps and bytes are by formula{has}")
    else:
        notes.append("right: the steps were carried out on symbols; bytes counted from the steps")
    return table(title, ["algorithm", *numbers, *times, "right"], rows, notes=["", *notes])


def _cells(row: AlgorithmRow, best: str, priced: bool) -> list[str]:
    seconds = [row.time_s, row.latency_s] if priced else []
    return [
        row.name + " *" * (row.name == best),
        f"{row.steps:,}",
        format_traffic(row.bytes_per_rank),
        "" if row.bytes_counted is None else format_traffic(row.bytes_counted),
        *("" if value is None else format_seconds(value) for value in seconds),
        {None: "priced only" if row.time_s is not None else "by formula", True: "yes", False: "NO"}[row.correct],
    ]


def _changes(report: CollectiveReport) -> str:
    if not report.plot:
        return ""
    lines = [f"fastest up to {format_memory(c.payload_bytes)}: {c.from_}" for c in report.crossovers]
    return "\n".join([*lines, f"fastest {'above' if lines else 'at all sizes'}: {report.plot[-1][1]}"])


def _plot(report: CollectiveReport) -> str:
    """A bar for each size; its length is the logarithm of the time, from the shortest (one column) to the longest."""
    if not report.plot:
        return ""
    times = [time_s for _, _, time_s in report.plot]
    low, high = math.log(min(times)), math.log(max(times))
    lines = ["time of the fastest over size (bars are logarithmic)"]
    names = max(len(name) for _, name, _ in report.plot)
    for size, name, time_s in report.plot:
        length = 1 + round((BAR - 1) * (math.log(time_s) - low) / (high - low)) if high > low else 1
        lines.append(f"{format_memory(size):>8}  {name:<{names}}  {'#' * length} {format_seconds(time_s)}")
    return "\n".join(lines)
