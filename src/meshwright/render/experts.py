"""Ways to dispatch tokens to experts as a table."""

from __future__ import annotations

from meshwright.collectives.experts.report import ExpertReport, WayRow
from meshwright.render.text import Column, table
from meshwright.units import format_seconds, format_traffic


def experts_text(report: ExpertReport) -> str:
    """One row for each way, routing limit and placement."""
    tiers = [Column(f"{name}: copies", right=True) for name in report.tiers] + [
        Column("busiest sends", right=True) for _ in report.tiers[-1:]
    ]
    numbers = [Column(header, right=True) for header in ("tail", "experts' work", "dispatch", "combine")]
    title = f"{report.model}: {report.tokens} tokens on each of {report.ranks} ranks to their experts, on {report.cluster}"
    notes = [
        "", "* fastest there and back. copies: of a token, over a tier, on average; bf16 both ways",
        "tail: the busiest adapter over the average; experts' work: the busiest rank's over the average, which its compute takes longer",
        *_placement(report),
    ]  # fmt: skip
    limited = len({row.limited for row in report.rows}) > 1
    cells = [_cells(row, row is report.best, limited) for row in report.rows]
    return table(title, ["way", *tiers, *numbers], cells, notes=notes)


def _cells(row: WayRow, best: bool, tell_limit: bool) -> list[str]:
    words = [row.way, *(["any node"] if tell_limit and not row.limited else []), *(["placed"] if row.placed else [])]
    return [
        ", ".join(words) + " *" * best,
        *(f"{count:.2f}" for count in row.copies),
        *(format_traffic(sent) for sent in row.bytes[-1:]),
        f"{row.tail:.2f}", f"{row.imbalance:.2f}", format_seconds(row.dispatch_s), format_seconds(row.combine_s),
    ]  # fmt: skip


def _placement(report: ExpertReport) -> list[str]:
    found = report.placement
    if found is None:
        return []
    return [
        f"placed: {found.inside:.1%} of pairs of experts that serve a token are in one node, of at most {found.inside_bound:.1%};",
        f"the busiest rank has {found.heaviest:.2f} times the average load, of at least {found.heaviest_bound:.2f}",
    ]
