"""The groups of every axis as a table, with a picture of small worlds; the orders of the axes by their price."""

from __future__ import annotations

from meshwright.explain.orders import OrderReport, OrderRow
from meshwright.explain.ranks import RankReport
from meshwright.render.text import Column, table
from meshwright.units import format_seconds

SHOWN_ORDERS = 10
"""Rows of the table; the JSON has all."""

ALIKE = 1e-9
"""Steps that differ by less, in parts of one, differ by rounding only."""


def ranks_text(report: RankReport) -> str:
    """One line per axis, then the nodes with every rank's place."""
    columns: list[Column | str] = [
        Column("axis", fold=False), Column("ranks", right=True, fold=False), Column("tier", fold=False), "which", "groups", "together they",
    ]  # fmt: skip
    picture = report.picture()
    notes = ["", *picture, "", report.legend()] if picture else []
    title = f"{report.world_size} ranks under {report.layout}"
    return table(title, columns, report.rows(), notes=notes) if report.axes else "\n".join([title, *notes])


def orders_text(report: OrderReport) -> str:
    """The fastest orders, the given one, the slowest; then what each axis loses by being moved out."""
    rows, best, given = report.rows, report.rows[0], report.given
    shown = [row for place, row in enumerate(rows) if place < SHOWN_ORDERS - 1 or row is given or row is rows[-1]]
    axes = list(best.tiers)
    columns: list[Column | str] = [
        Column("order", fold=False),
        Column("step", right=True),
        Column("slower by", right=True),
        *(f"{axis} spans" for axis in axes),
    ]
    cells = [
        [_marked(row, report), format_seconds(row.step_s), f"{row.step_s / best.step_s - 1:.1%}", *(row.tiers[a] for a in axes)]
        for row in shown
    ]
    notes = ["", "* the layout's own. Orders that give the same groups are one line; " + _left_out(report, len(rows) - len(shown))]
    return table(f"{len(rows)} ways to lay the axes over the ranks, innermost axis first", columns, cells, notes=[*notes, *_wishes(report)])


def _marked(row: OrderRow, report: OrderReport) -> str:
    return f"{report.layout.order} *" if row is report.given else row.order


def _left_out(report: OrderReport, hidden: int) -> str:
    refused = f"; {report.refused} orders would leave no regular expert groups" if report.refused else ""
    return f"{hidden} more are left out" + refused if hidden else "these are all" + refused


def _wishes(report: OrderReport) -> list[str]:
    if report.rows[-1].step_s <= report.rows[0].step_s * (1 + ALIKE):
        return ["", "The order makes no difference here."]
    lines = ["", "exposed seconds of each axis, with it innermost and with it outermost:"]
    width = max((len(wish.axis) for wish in report.ladder), default=0)
    for wish in report.ladder:
        lines.append(f"  {wish.axis:<{width}}  {format_seconds(wish.innermost_s):>9} -> {format_seconds(wish.outermost_s)}")
    return lines
