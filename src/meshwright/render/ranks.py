"""The groups of every axis as a table, with a picture of small worlds."""

from __future__ import annotations

from meshwright.explain.ranks import RankReport
from meshwright.render.text import Column, table


def ranks_text(report: RankReport) -> str:
    """One line per axis, then the nodes with every rank's place."""
    columns: list[Column | str] = [
        Column("axis", fold=False), Column("ranks", right=True, fold=False), Column("tier", fold=False), "which", "groups", "together they",
    ]  # fmt: skip
    picture = report.picture()
    notes = ["", *picture, "", report.legend()] if picture else []
    title = f"{report.world_size} ranks under {report.layout}"
    return table(title, columns, report.rows(), notes=notes) if report.axes else "\n".join([title, *notes])
