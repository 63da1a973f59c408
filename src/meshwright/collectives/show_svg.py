"""Draw a collective: a column of cells per rank before and after each step, an arrow per message between them.

Ranks go down, time goes right. Inside a column each chunk has its own colour; the colour is as full as the chunk is, and
a cell that is complete and defined by the collective has a frame. Solid arrows add, dashed ones overwrite.
"""

from __future__ import annotations

from collections import defaultdict
from xml.sax.saxutils import escape

import numpy as np

from meshwright.collectives.algorithms.steplist import StepList
from meshwright.collectives.show import check_size, chunk_name, complete, contributors, title
from meshwright.collectives.verify import Counts, initial, walk

_LEFT, _TOP, _BOTTOM = 60, 56, 36
_ROW, _GAP, _HEIGHT = 46, 96, 24
_MAX_COLUMN = 240


def show_svg(steps: StepList, name: str) -> str:
    """One self-contained SVG. Raises InputError for a collective too large to look at."""
    check_size(steps)
    cell = max(4.0, min(24.0, _MAX_COLUMN / steps.chunks))
    stride = cell * steps.chunks + _GAP
    width = _LEFT + stride * (steps.num_steps + 1) - _GAP + 20
    height = _TOP + _ROW * steps.ranks + _BOTTOM
    states = [initial(steps), *(after for _, after in walk(steps))]
    body = [_text(_LEFT, 20, title(steps, name), 14, "start")]
    body += [_text(_LEFT - 10, _middle(rank) + 4, f"rank {rank}", 11, "end") for rank in range(steps.ranks)]
    for index, held in enumerate(states):
        left = _LEFT + index * stride
        body.append(_text(left, _TOP - 12, f"step {index}" if index else "start", 11, "start"))
        body += _cells(steps, held, left, cell)
    for index in range(steps.num_steps):
        right_edge = _LEFT + index * stride + cell * steps.chunks
        body += _arrows(steps, index, right_edge, _LEFT + (index + 1) * stride)
    legend = "cell: one chunk, its number of contributions on hover; framed: complete; arrow: solid adds, dashed overwrites"
    body.append(_text(_LEFT, height - 12, legend, 10, "start"))
    return "\n".join([_head(width, height), *body, "</svg>"]) + "\n"


def _head(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        ' font-family="sans-serif" fill="#222">\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>\n'
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>'
    )


def _text(x: float, y: float, words: str, size: int, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def _middle(rank: int) -> float:
    return _TOP + _ROW * rank + _HEIGHT / 2


def _cells(steps: StepList, held: Counts, left: float, cell: float) -> list[str]:
    done = complete(steps, held)
    full = 1 if steps.op in ("all_to_all", "all_gather") else steps.ranks
    drawn = []
    for rank, chunk in np.ndindex(steps.ranks, steps.chunks):
        share = min(1.0, int((held[rank, chunk] > 0).sum()) / full)
        hue = 360 * chunk / steps.chunks
        fill = f'fill="hsl({hue:.0f},65%,55%)" fill-opacity="{0.15 + 0.85 * share:.2f}"' if share else 'fill="#f2f2f2"'
        frame = 'stroke="#222" stroke-width="1.5"' if done[rank, chunk] else 'stroke="#bbb" stroke-width="0.5"'
        label = f"rank {rank}, chunk {chunk_name(steps, chunk)}: {contributors(steps, held[rank, chunk], chunk)}"
        box = f'x="{left + chunk * cell:.1f}" y="{_TOP + _ROW * rank}" width="{cell:.1f}" height="{_HEIGHT}"'
        drawn.append(f'<rect class="cell" {box} {fill} {frame}><title>{escape(label)}</title></rect>')
    return drawn


def _arrows(steps: StepList, index: int, left: float, right: float) -> list[str]:
    sent: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for row in np.flatnonzero(steps.step == index):
        sent[int(steps.sender[row]), int(steps.receiver[row]), bool(steps.reduce[row])].append(int(steps.chunk[row]))
    drawn = []
    for (sender, receiver, adds), chunks in sorted(sent.items()):
        names = " ".join(chunk_name(steps, chunk) for chunk in chunks)
        label = f"step {index + 1}: rank {sender} to rank {receiver}, {'adds' if adds else 'overwrites'} {names}"
        dash = "" if adds else ' stroke-dasharray="4 2"'
        line = f'x1="{left + 3:.1f}" y1="{_middle(sender):.1f}" x2="{right - 4:.1f}" y2="{_middle(receiver):.1f}"'
        drawn.append(f'<line class="message" {line} stroke="#555"{dash} marker-end="url(#head)"><title>{escape(label)}</title></line>')
    return drawn
