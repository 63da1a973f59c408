"""The answer of ``timeline`` as text: the grid, who computes and who waits for what, who holds the others up, layers in lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.render.grid import text_grid
from meshwright.render.text import WIDTH, Column, facts, table
from meshwright.timeline.inside import LANES as INSIDE_LANES
from meshwright.timeline.inside import InsideLayer, InsidePass
from meshwright.timeline.layers import Direction, LayerOverlap
from meshwright.timeline.report import CAUSES, TimelineReport
from meshwright.timeline.sharded import Piece
from meshwright.units import format_seconds

CAUSE_WORDS = {
    "upstream": "activation", "downstream": "gradient", "transfer": "message", "sending": "sends", "start": "start",
    "gradients": "reduces", "end": "end",
}  # fmt: skip
PATH_PIECES = 4
"""Pieces of the critical path that are told."""

LEAST_SHARE = 5e-4
"""What would print as 0.0% is not told."""

LANES = ("gather", "compute", "scatter")
MARKS = {"gather": "=", "compute": "-", "scatter": "~"}


def timeline_text(report: TimelineReport, width: int = WIDTH) -> str:
    """Everything, without a newline at its end."""
    layout = report.step.numbers.ledger.layout
    slow = f", with {' and '.join(report.slow)}" if report.slow else ""
    parts = [f"{format_seconds(report.step_s)} a step on {layout.world_size:,} GPUs: {layout}{slow}"]
    if layout.pp > 1:
        parts += [text_grid(report.step.timeline, width), _ranks(report)]
    parts.append("\n".join(facts(_facts(report), width)))
    if report.layers is not None:
        parts += [_lanes(report.layers, each, width) for each in report.layers.directions if each.collective_s]
    if report.inside is not None and not report.slow:
        parts += [_inside(report.inside, each, width) for each in report.inside.passes]
    return "\n\n".join(parts)


def _ranks(report: TimelineReport) -> str:
    """A line per pipeline rank; causes that no rank has are left out."""
    step = report.step
    used = [cause for cause in CAUSES if step.waiting_s[cause].max() > 5e-5 * report.step_s]
    layout = step.numbers.ledger.layout
    columns = [
        Column(name, right=True, fold=False)
        for name in ("rank", "computes", *(CAUSE_WORDS[cause] for cause in used), *(["more"] if report.slow else []), "held")
    ]  # fmt: skip
    rows = [
        [
            rank, format_seconds(float(step.timeline.busy_s[rank])),
            *(_seconds(float(step.waiting_s[cause][rank])) for cause in used),
            *([_seconds(report.added_s(rank))] if report.slow else []), f"{report.in_flight[rank]:g}",
        ]
        for rank in range(layout.pp)
    ]  # fmt: skip
    title = f"Seconds by pipeline rank, each standing for {layout.world_size // layout.pp} GPUs: computing, and waiting for"
    more = "; more: waiting that the slowness has added" if report.slow else ""
    return table(title, columns, rows, notes=["", f"held: micro-batches whose activations a rank holds at most{more}"])


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds > 1e-9 else "-"


def _facts(report: TimelineReport) -> list[tuple[str, str]]:
    step = report.step
    found = []
    if len(step.ends) > 1:
        found += [("bubble", f"{step.bubble_fraction:.1%} of the pipeline's {format_seconds(step.timeline.span_s)}")]
        found += [("culprit", _culprit(report))]
    hosts = [report.host_s(rank) for rank in range(len(step.ends))]
    if (longest := max(hosts)) > LEAST_SHARE * report.step_s:
        rank = hosts.index(longest)
        told = f"{format_seconds(longest)} of what counts as computing on rank {rank} is its device waiting for the host to launch kernels"
        found.append(("host", told))
    if report.slow:
        lost = report.step_s - report.healthy.step_s
        times = report.step_s / report.healthy.step_s
        found.append(("loss", f"{format_seconds(lost)} a step: {times:.3f} times the healthy {format_seconds(report.healthy.step_s)}"))
    found.append(("after it", _after(report)))
    shares = report.shares_of_critical_path()
    pieces = [f"{name} {share:.1%}" for name, share in shares[:PATH_PIECES] if share >= LEAST_SHARE]
    if (rest := sum(share for _, share in shares[len(pieces) :])) >= LEAST_SHARE:
        pieces.append(f"the rest {rest:.1%}")
    return [*found, ("critical path", ", ".join(pieces))]


def _culprit(report: TimelineReport) -> str:
    rank, step = report.culprit, report.step
    if rank is None:
        return "none: no rank waits much less than the others"
    waits = [report.waited_s(each) / step.reduced_s for each in range(len(step.ends))]
    others = (sum(waits) - waits[rank]) / (len(waits) - 1)
    return f"rank {rank}, for which the others wait: it waits {waits[rank]:.1%} of the time, the others {others:.1%} on average"


def _after(report: TimelineReport) -> str:
    """The step's end on the rank that is last."""
    end = report.step.ends[report.step.last_rank]
    reduced = sum(each.end_s - each.start_s for each in end.reductions)
    out = end.reduced_s - end.computed_s
    words = [f"gradients stick out {format_seconds(out)}" if out > 1e-9 else "no gradients left to reduce"]
    if reduced:
        words[0] += f" ({len(end.reductions)} reductions of {format_seconds(reduced)} in all)"
    words += [f"gradient norm {format_seconds(report.step.scalars_s)}", f"optimizer {format_seconds(end.optimizer_s)}"]
    if end.collect_s:
        words.append(f"parameters {format_seconds(end.collect_s)}")
    return ", ".join(words)


def _lanes(layers: LayerOverlap, direction: Direction, width: int) -> str:
    """Lanes of the shown layers, and whether their compute hides the collectives."""
    span = max(piece.end_s for piece in direction.shown)
    title = f"{direction.name.capitalize()} of layers in the middle, {format_seconds(span)}"
    return "\n".join([title, "", *_drawn(direction.shown, LANES, width), "", *facts([("", _hiding(layers, direction))], width)])


def _inside(inside: InsideLayer, one: InsidePass, width: int) -> str:
    """Lanes of one layer, and what each axis takes and exposes."""
    title = f"{one.name.capitalize()} of one layer ({inside.label}), {format_seconds(one.span_s)}"
    told = [f"compute {one.busy_s('compute') / one.span_s:.0%} of it"]
    for lane in INSIDE_LANES[1:]:
        if busy_s := one.busy_s(lane):
            exposed_s = one.exposed_s(lane)
            part = "all" if exposed_s > 0.999 * busy_s else "none" if exposed_s < 0.001 * busy_s else format_seconds(exposed_s)
            told.append(f"{lane} sends for {format_seconds(busy_s)}, {part} of it exposed")
    return "\n".join([title, "", *_drawn(one.pieces, INSIDE_LANES, width), "", *facts([("", "; ".join(told))], width)])


def _drawn(pieces: Iterable[Piece], lanes: Sequence[str], width: int) -> list[str]:
    """A line per lane that has pieces; a name where there is room for it."""
    margin = max(map(len, lanes)) + 2
    columns = width - margin
    everything = list(pieces)
    span = max(piece.end_s for piece in everything)
    lines = []
    for lane in lanes:
        pieces = [piece for piece in everything if piece.lane == lane and piece.end_s > piece.start_s]
        if not pieces:
            continue
        text = [" "] * columns
        for piece in pieces:
            first, last = (round(moment / span * columns) for moment in (piece.start_s, piece.end_s))
            label = next((name for name in (piece.name, piece.name.split()[-1]) if len(name) + 2 <= last - first), "")
            text[first:last] = list(f"|{label}".ljust(last - first, MARKS.get(lane, "="))[: last - first])
        lines.append(f"{lane:<{margin}}{''.join(text).rstrip()}")
    return lines


def _hiding(layers: LayerOverlap, direction: Direction) -> str:
    lanes = [lane for lane in ("gather", "scatter") if any(piece.lane == lane and piece.end_s > piece.start_s for piece in direction.shown)]
    what = " and ".join(lanes)
    compute, collective = format_seconds(direction.compute_s), format_seconds(direction.collective_s)
    whole = f"In all layers {format_seconds(direction.whole.exposed_s)} of a micro-batch's {direction.name} stick out."
    if not layers.hides:
        return f"The stack does not overlap them: a layer computes {compute} and its {what} take {collective}. {whole}"
    least = f"about {layers.tokens_to_hide(direction):,} tokens of a micro-batch on a rank (here {layers.tokens:,})"
    if direction.hidden:
        return f"A layer computes {compute}, which hides its {what} of {collective}; below {least} it would not. {whole}"
    return f"A layer computes {compute}, which does not hide its {what} of {collective}; it takes {least}. {whole}"
