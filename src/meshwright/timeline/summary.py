"""A timeline in a few figures: the stable keys of the command's JSON, and the sentence about who is at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.timeline.critical_path import critical_path
from meshwright.timeline.waiting import CAUSES, culprit, waiting_s

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline

__all__ = ["culprit_text", "summary"]


def summary(timeline: Timeline) -> dict[str, object]:
    """``{"step_s", "bubble_fraction", "ranks": [{"rank", "busy_s", "waiting_s": {cause: seconds}}], "critical_path", "culprit"}``.

    ``step_s`` is the pipeline's span; whoever knows what follows it (gradient reduction, optimizer) adds that. Ranks are pipeline
    ranks; ``culprit`` is one of them, or null.
    """
    waited = waiting_s(timeline)
    return {
        "step_s": timeline.span_s,
        "bubble_fraction": timeline.bubble_fraction,
        "ranks": [
            {
                "rank": rank,
                "busy_s": float(timeline.busy_s[rank]),
                "waiting_s": {cause: float(waited[cause][rank]) for cause in CAUSES},
            }
            for rank in range(timeline.schedule.num_ranks)
        ],
        "critical_path": [link._asdict() for link in critical_path(timeline)],
        "culprit": culprit(timeline),
    }


def culprit_text(timeline: Timeline, healthy: Timeline | None = None) -> str:
    """One or two sentences: who waits least and is waited for, and what it costs against the healthy timeline."""
    loss = ""
    if healthy is not None:
        loss = f" The step takes {timeline.span_s / healthy.span_s:.3f} times as long as without it."
    rank = culprit(timeline)
    if rank is None:
        return f"No rank stands out: all wait about as long.{loss}"
    idle = timeline.span_s - timeline.busy_s - timeline.sending_s
    others = (idle.sum() - idle[rank]) / (len(idle) - 1)
    return (
        f"The others wait for rank {rank}: it waits least, {idle[rank] / timeline.span_s:.1%} of the pipeline's time, "
        f"the others {others / timeline.span_s:.1%} on average.{loss}"
    )
