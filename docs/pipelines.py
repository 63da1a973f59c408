"""What the page on pipelines shows, from the schedules and the simulator themselves.

``python docs/pipelines.py`` draws the pictures again; a test compares them with what the program draws.
"""

from __future__ import annotations

from pathlib import Path

from meshwright.render.grid import LEGEND, text_grid
from meshwright.render.grid_svg import svg_grid
from meshwright.schedule import build, check
from meshwright.timeline import Slow, Timeline, culprit_text, simulate, slow_down, uniform_costs

PICTURES = Path(__file__).parent / "concepts" / "pipelines"
WIDTH = 172
"""Columns of the widest grid; each is drawn so that a pass of a chunk is a whole number of them."""
CASES = {
    "naive": (4, 1, 4), "gpipe": (4, 1, 8), "1f1b": (4, 1, 8), "interleaved": (4, 2, 8), "zb-h1": (4, 1, 8), "zb-h2": (4, 1, 8),
    "zb-1p": (4, 1, 8), "zb-2p": (4, 1, 8), "zb-v": (4, 2, 8), "dualpipe": (4, 1, 8), "dualpipe-v": (4, 2, 8),
}  # fmt: skip
"""p, v and m of each picture."""


def timeline(name: str) -> Timeline:
    """Every stage takes 1 for a forward and 1 for each half of a backward, in v chunks; messages are free."""
    p, v, m = CASES[name]
    schedule = build(name, p, v, m)
    return simulate(schedule, uniform_costs(schedule, 1 / v, 1 / v, 1 / v))


def picture(name: str) -> str:
    """The text of the schedule's SVG file."""
    p, v, m = CASES[name]
    chunks = f"{v} chunks each, " if v > 1 else ""
    found = timeline(name)
    return svg_grid(found, title=f"{name}: {p} ranks, {chunks}{m} micro-batches, bubble {found.bubble_fraction:.1%}")


def grid(name: str) -> str:
    """Markdown: the figures of a schedule, its grid as text, its picture."""
    found = timeline(name)
    checked = check(found.schedule)
    v = found.schedule.chunks_per_rank // found.schedule.copies
    margin, passes = len("rank 0  "), round(found.span_s * v)
    width = margin + passes * min(4, (WIDTH - margin) // passes)
    held = ", ".join(f"{count / v:g}" for count in checked.in_flight_chunks)
    return "\n".join([
        "",
        f"Span {found.span_s:g}, bubble {found.bubble_fraction:.1%}; idle between a rank's own first and last computation: "
        f"{(found.rank_span_s - found.busy_s).max():g} at most. Micro-batches held: {held}. Messages: {checked.messages}.",
        "", "```text", text_grid(found, width, legend=False), "```", "",
        f"![{name} on a time axis](pipelines/{name}.svg)", "",
    ])  # fmt: skip


def legend() -> str:
    return f"\n```text\n{LEGEND}\n```\n"


def slow_stage(p: int = 8, m: int = 32, stage: int = 3, factor: float = 1.3) -> str:
    """Markdown: 1F1B with one slow stage."""
    schedule = build("1f1b", p, 1, m)
    healthy = simulate(schedule, uniform_costs(schedule))
    slow = simulate(schedule, slow_down(schedule, healthy.costs, Slow(factor, stage=stage)))
    return f"\n```text\n{text_grid(slow, 150, legend=False)}\n```\n\n{culprit_text(slow, healthy)}\n"


def losses() -> str:
    """Markdown: what the slow stage costs by the number of micro-batches."""
    rows = ["", "| micro-batches | slowdown |", "|---|---|"]
    for m in (8, 32, 128):
        schedule = build("1f1b", 8, 1, m)
        costs = uniform_costs(schedule)
        slow = simulate(schedule, slow_down(schedule, costs, Slow(1.3, stage=3)))
        rows.append(f"| {m} | {slow.span_s / simulate(schedule, costs).span_s:.3f} |")
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name in CASES:
        (PICTURES / f"{name}.svg").write_text(picture(name), encoding="utf-8")
