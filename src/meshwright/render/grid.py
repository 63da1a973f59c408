"""A pipeline's timeline as a grid of text: a line per rank, time from left to right.

    rank 0  F0--F1--F2--F3-->>>>>>>>B0------...

A computation is its letter (torch's: F forward, B backward, I and W its input and weight halves), its micro-batch, and a, b, c ...
for the rank's chunks where there are several; what does not fit is left out from the end (a micro-batch's number whole), then
dashes. Waiting is ``<`` for an activation, ``>`` for a
gradient, ``~`` for a message on its way, or for its own message, blank before the first and after the last computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.schedule.actions import KIND_WORDS, Kind
from meshwright.timeline.waiting import waits

if TYPE_CHECKING:
    from meshwright.timeline.events import Timeline

__all__ = ["event_label", "text_grid"]

WAIT_MARKS = {"upstream": "<", "downstream": ">", "transfer": "~", "sending": "~", "start": " ", "end": " "}
LEGEND = "F forward  B backward  I, W its input and weight halves  (FB) both as one  waits for: < activation  > gradient  ~ message"


def text_grid(timeline: Timeline, width: int = 120, legend: bool = True) -> str:
    """The grid, without a newline at its end.

    Args:
        timeline: a simulated step.
        width: columns of the whole text. Many micro-batches need many columns: a computation shorter than one is not seen.
        legend: a last line that explains the marks.
    """
    names = [f"rank {rank}" for rank in range(timeline.schedule.num_ranks)]
    margin = max(map(len, names)) + 2
    columns = max(width - margin, 10)
    begin, scale = float(timeline.start_s.min()), columns / timeline.span_s
    lines = [[" "] * columns for _ in names]

    def place(rank: int, start_s: float, end_s: float, texts: tuple[str, ...], fill: str) -> None:
        first, last = round((start_s - begin) * scale), round((end_s - begin) * scale)
        text = next((text for text in texts if len(text) <= last - first), "")
        lines[rank][first:last] = list(text.ljust(last - first, fill))

    for wait in waits(timeline):
        place(wait.rank, wait.start_s, wait.end_s, (), WAIT_MARKS[wait.cause])
    for index, event in enumerate(timeline):
        if not timeline.second_of_pair[index]:
            label = event_label(timeline, index)
            shorter = ("(FB)", "+") if label.startswith("(") else (label.rstrip("abcdefghijklmnopqrstuvwxyz"), label[0])
            place(event.rank, event.start_s, event.end_s, (label, *shorter), "-")
    rows = [f"{name:<{margin}}{''.join(line).rstrip()}" for name, line in zip(names, lines, strict=True)]
    return "\n".join([*rows, LEGEND] if legend else rows)


def event_label(timeline: Timeline, index: int) -> str:
    """``F3``, ``B0b`` for the rank's second chunk, ``(F7B2)`` for a pair."""
    paired = index + 1 < len(timeline) and bool(timeline.second_of_pair[index + 1])
    label = _label(timeline, index)
    return f"({label}{_label(timeline, index + 1)})" if paired else label


def _label(timeline: Timeline, index: int) -> str:
    schedule = timeline.schedule
    chunk = int(timeline.chunk[index])
    letter = KIND_WORDS[Kind(int(timeline.kind[index]))]
    label = f"{letter}{int(timeline.micro_batch[index])}"
    if schedule.chunks_per_rank > 1:
        own = [c for c, rank in enumerate(schedule.rank_of_chunk) if rank == schedule.rank_of_chunk[chunk]]
        turn = own.index(chunk)
        label += chr(ord("a") + turn) if turn < 26 else f".{turn}"
    return label
