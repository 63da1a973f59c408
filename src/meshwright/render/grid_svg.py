"""A pipeline's timeline as a picture: a row per rank, a box per computation, waiting coloured by its cause."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from meshwright.render.grid import event_label
from meshwright.schedule.actions import Kind
from meshwright.timeline.waiting import waits
from meshwright.units import format_seconds

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline

__all__ = ["svg_grid"]

COLORS = {
    Kind.FORWARD: "#4e79a7",
    Kind.BACKWARD: "#59a14f",
    Kind.BACKWARD_INPUT: "#76b7b2",
    Kind.BACKWARD_WEIGHT: "#b6992d",
}
PAIR_COLOR = "#9c755f"
WAIT_COLORS = {"upstream": "#f28e2b", "downstream": "#e15759", "transfer": "#b07aa1", "sending": "#bab0ac", "start": "none", "end": "none"}
WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward, input half",
    Kind.BACKWARD_WEIGHT: "backward, weight half",
}
ROW, GAP, LEFT, TOP, LETTER = 26, 6, 64, 28, 6.2
"""Pixels: height of a row, between rows, before the first column, above the first row, width of a small letter."""


def svg_grid(timeline: Timeline, width: int = 1100, title: str = "") -> str:
    """The picture as the text of an SVG file, readable on white and on dark pages alike.

    Args:
        timeline: a simulated step.
        width: pixels.
        title: above the rows; default the schedule's name with its sizes, span and bubble.
    """
    schedule = timeline.schedule
    scale = (width - LEFT - 10) / timeline.span_s
    begin = float(timeline.start_s.min())
    title = title or (
        f"{schedule.name}, {schedule.num_ranks} ranks, {schedule.num_micro_batches} micro-batches: "
        f"{format_seconds(timeline.span_s)}, bubble {timeline.bubble_fraction:.1%}"
    )
    height = TOP + schedule.num_ranks * (ROW + GAP) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'font-family="ui-monospace, monospace" font-size="10">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="17" font-size="13" fill="#222222">{escape(title)}</text>',
    ]
    for rank in range(schedule.num_ranks):
        parts.append(f'<text x="8" y="{_row(rank) + 17}" font-size="11" fill="#222222">rank {rank}</text>')
    for wait in waits(timeline):
        if (color := WAIT_COLORS[wait.cause]) != "none":
            x, size = LEFT + (wait.start_s - begin) * scale, (wait.end_s - wait.start_s) * scale
            parts.append(_box(x, _row(wait.rank) + ROW / 2 - 3, size, 6, color, f"waits: {wait.cause}", opacity=0.55))
    parts += _boxes(timeline, begin, scale)
    parts += _legend(timeline, height - 14)
    return "\n".join([*parts, "</svg>", ""])


def _boxes(timeline: Timeline, begin: float, scale: float) -> list[str]:
    parts = []
    for index, event in enumerate(timeline):
        if timeline.second_of_pair[index]:
            continue
        paired = index + 1 < len(timeline) and bool(timeline.second_of_pair[index + 1])
        x, size, y = LEFT + (event.start_s - begin) * scale, (event.end_s - event.start_s) * scale, _row(event.rank)
        label = event_label(timeline, index)
        told = f"{label}: {format_seconds(event.start_s)} to {format_seconds(event.end_s)}"
        parts.append(_box(x, y, size, ROW, PAIR_COLOR if paired else COLORS[Kind(event.kind)], told))
        text = label if len(label) * LETTER < size else str(event.micro_batch)
        if len(text) * LETTER < size:
            parts.append(f'<text x="{x + size / 2:.1f}" y="{y + 17}" text-anchor="middle" fill="#ffffff">{text}</text>')
    return parts


def _legend(timeline: Timeline, y: int) -> list[str]:
    """Only what occurs in this picture."""
    kinds = {int(kind) for kind in timeline.kind}
    entries = [(COLORS[kind], WORDS[kind]) for kind in COLORS if kind in kinds]
    if timeline.second_of_pair.any():
        entries.append((PAIR_COLOR, "forward and backward as one"))
    causes = {wait.cause for wait in waits(timeline)}
    entries += [(color, f"waits: {cause}") for cause, color in WAIT_COLORS.items() if cause in causes and color != "none"]
    parts, x = [], float(LEFT)
    for color, word in entries:
        parts.append(f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{x + 14:.1f}" y="{y}" fill="#222222">{escape(word)}</text>')
        x += 14 + len(word) * LETTER + 16
    return parts


def _row(rank: int) -> int:
    return TOP + rank * (ROW + GAP)


def _box(x: float, y: float, width: float, height: float, color: str, told: str, opacity: float = 1.0) -> str:
    shade = "" if opacity == 1.0 else f' fill-opacity="{opacity}"'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width - 0.5, 0.5):.1f}" height="{height}" fill="{color}"{shade}>'
        f"<title>{escape(told)}</title></rect>"
    )
