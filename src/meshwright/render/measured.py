"""A measured pipeline next to the predicted one: both grids, and what each rank computes and waits for in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.render.grid import LEGEND, text_grid
from meshwright.render.grid_svg import svg_grid
from meshwright.render.perfetto import WAITING, perfetto_trace, step_trace
from meshwright.render.text import WIDTH, Column, table
from meshwright.timeline.waiting import CAUSES, culprit, waiting_s
from meshwright.units import format_seconds

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline
    from meshwright.timeline.measured import Measured
    from meshwright.timeline.report import TimelineReport

__all__ = ["measured_json", "measured_svg", "measured_text", "measured_trace"]

WORDS = {"upstream": "activation", "downstream": "gradient", "transfer": "message", "sending": "itself", "start": "start", "end": "end"}


def measured_text(report: TimelineReport, measured: Measured, width: int = WIDTH) -> str:
    """Both grids, each over its own span, and the shares of each rank."""
    ours, theirs = report.step.timeline, measured.timeline
    parts = [
        f"Predicted: the pipeline takes {format_seconds(ours.span_s)}, bubble {ours.bubble_fraction:.1%}",
        text_grid(ours, width, legend=False),
        f"Measured: step {measured.step} on global ranks {', '.join(map(str, measured.ranks))}: the pipeline takes"
        f" {format_seconds(theirs.span_s)} of the step's {format_seconds(measured.step_s)}, bubble {theirs.bubble_fraction:.1%}",
        text_grid(theirs, width, legend=False) + "\n" + LEGEND,
        _shares(ours, theirs), _culprit(theirs),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _shares(predicted: Timeline, measured: Timeline) -> str:
    """A line per rank: predicted / measured share of the span."""
    before, after = waiting_s(predicted), waiting_s(measured)
    used = [cause for cause in CAUSES if max(before[cause].max() / predicted.span_s, after[cause].max() / measured.span_s) > 0.0005]
    columns = [Column(name, right=True, fold=False) for name in ("rank", "computes", *(WORDS[cause] for cause in used))]
    rows = [
        [
            rank, _both(predicted.busy_s[rank] / predicted.span_s, measured.busy_s[rank] / measured.span_s),
            *(_both(before[cause][rank] / predicted.span_s, after[cause][rank] / measured.span_s) for cause in used),
        ]
        for rank in range(measured.schedule.num_ranks)
    ]  # fmt: skip
    return table("Shares of the pipeline's time, predicted / measured, in percent: computing, and waiting for", columns, rows)


def _both(predicted: float, measured: float) -> str:
    return f"{100 * predicted:.1f} / {100 * measured:.1f}"


def _culprit(measured: Timeline) -> str:
    rank = culprit(measured)
    return "No measured rank waits much less than the others." if rank is None else f"The others wait for rank {rank}: it waits least."


def measured_json(measured: Measured) -> dict[str, object]:
    """What stands beside the prediction's keys."""
    timeline, waited = measured.timeline, waiting_s(measured.timeline)
    return {
        "step": measured.step,
        "step_s": measured.step_s,
        "pipeline_s": timeline.span_s,
        "bubble_fraction": timeline.bubble_fraction,
        "ranks": [
            {"rank": rank, "global_rank": measured.ranks[rank], "busy_s": float(timeline.busy_s[rank]),
             "waiting_s": {cause: float(waited[cause][rank]) for cause in CAUSES}}
            for rank in range(timeline.schedule.num_ranks)
        ],
        "culprit": culprit(timeline),
    }  # fmt: skip


def measured_trace(report: TimelineReport, measured: Measured) -> dict[str, object]:
    """Perfetto's form: the predicted processes first, then a process for each measured rank."""
    trace, ranks = step_trace(report), report.step.timeline.schedule.num_ranks
    events = list(trace["traceEvents"])  # type: ignore[call-overload]
    shift = max(event["pid"] for event in events) + 1
    for event in perfetto_trace(measured.timeline)["traceEvents"]:  # type: ignore[attr-defined]
        moved = {**event, "pid": event["pid"] + shift}
        if event["name"] == "process_name":
            moved["args"] = {"name": f"measured pp rank {event['pid']} (rank {measured.ranks[event['pid']]})"}
        elif event["tid"] == WAITING and event["ph"] == "X":
            moved["cname"] = PERFETTO_COLORS.get(event["name"], "grey")
        events.append(moved)
    assert len(measured.ranks) == ranks
    return {**trace, "traceEvents": events}


PERFETTO_COLORS = {"upstream": "thread_state_iowait", "downstream": "terrible", "transfer": "thread_state_runnable", "sending": "grey"}
"""chrome://tracing's names of colours; Perfetto colours by the slice's name, which is the cause."""


def measured_svg(report: TimelineReport, measured: Measured, width: int = 1100) -> str:
    """Both pictures in one file, one below the other."""
    both = [
        svg_grid(report.step.timeline, width, f"predicted: {format_seconds(report.step.timeline.span_s)}"),
        svg_grid(measured.timeline, width, f"measured: {format_seconds(measured.timeline.span_s)}"),
    ]
    height = int(both[0].partition('height="')[2].partition('"')[0])
    lower = both[1].replace("<svg ", f'<svg y="{height}" ', 1)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {2 * height}" width="{width}" height="{2 * height}">'
    return "\n".join([head, both[0].rstrip(), lower.rstrip(), "</svg>", ""])
