"""Ranks' timelines of a step as an inline SVG for the report: above what the device computes, below what it sends and waits for.

Colours are the page's custom properties, so that the picture follows its light and dark style.
"""

from __future__ import annotations

from html import escape

from meshwright.diagnose.slow.lanes import Lane, Picture, Piece
from meshwright.units import format_seconds

__all__ = ["legend", "svg_of"]

CLASSES = {
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "transfer": "transfer", "communication": "transfer",
    "waiting": "waiting", "idle: data loading": "loading", "idle: host": "host", "idle: device": "device",
}  # fmt: skip
"""The style of a piece, by what it is."""

WORDS = {
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "transfer": "transfer", "waiting": "waiting for others",
    "loading": "idle: waits for data", "host": "idle: nothing launched", "device": "idle: waits on the device",
}  # fmt: skip

WIDTH, LEFT, UPPER, LOWER, GAP, TOP = 1160, 130, 16, 10, 8, 22
"""Pixels: the whole width, of the labels, heights of both halves of a lane, between lanes, and of the axis above."""

TICKS = 6


def svg_of(picture: Picture, culprits: frozenset[int]) -> str:
    """The picture; lanes of culprits are marked."""
    height = TOP + sum(_height(lane) + GAP for lane in picture.lanes)
    scale = (WIDTH - LEFT - 10) / picture.span_s if picture.span_s else 0.0
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(picture.title)}">']
    parts += _axis(picture.span_s, scale, height)
    y = TOP
    for lane in picture.lanes:
        guilty = " culprit" if culprits & set(lane.ranks) else ""
        parts.append(f'<text class="label{guilty}" x="{LEFT - 8}" y="{y + UPPER - 3}" text-anchor="end">{escape(lane.label)}</text>')
        parts += [_box(piece, y, UPPER, scale) for piece in lane.upper]
        parts += [_box(piece, y + UPPER + 1, LOWER, scale) for piece in lane.lower]
        y += _height(lane) + GAP
    return "".join([*parts, "</svg>"])


def legend(pictures: list[Picture]) -> list[tuple[str, str]]:
    """(class, words) of what occurs in the pictures."""
    used = {CLASSES[piece.what] for picture in pictures for lane in picture.lanes for piece in (*lane.upper, *lane.lower)}
    return [(name, words) for name, words in WORDS.items() if name in used]


def _height(lane: Lane) -> int:
    return UPPER + (1 + LOWER if lane.lower else 0)


def _axis(span_s: float, scale: float, height: int) -> list[str]:
    parts = []
    for tick in range(TICKS + 1):
        moment = span_s * tick / TICKS
        x = LEFT + moment * scale
        anchor = "end" if tick == TICKS else "middle"
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{height}"/>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{TOP - 9}" text-anchor="{anchor}">{format_seconds(moment)}</text>')
    return parts


def _box(piece: Piece, y: int, height: int, scale: float) -> str:
    x, width = LEFT + piece.start_s * scale, max((piece.end_s - piece.start_s) * scale, 0.5)
    told = f"{piece.told or WORDS[CLASSES[piece.what]]}: {format_seconds(piece.end_s - piece.start_s)}"
    box = f'class="{CLASSES[piece.what]}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"'
    return f"<rect {box}><title>{escape(told)}</title></rect>"
