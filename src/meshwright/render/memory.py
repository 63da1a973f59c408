"""The memory of all stages as a table."""

from __future__ import annotations

from meshwright.explain.memory_report import MemoryReport, StageReport
from meshwright.explain.words import in_runs
from meshwright.render.text import Column, table
from meshwright.units import format_memory


def memory_text(report: MemoryReport, hint: str = "") -> str:
    """A line per stage (equal neighbours share one), a column per category, what holds the peak; ``hint`` says what would fit."""
    used = [name for name in report.stages[0].categories if any(stage.categories[name] for stage in report.stages)]
    headers: list[Column | str] = [
        Column("stage", fold=False),
        "layers",
        *(Column(name.replace("_", " "), right=True) for name in used),
        Column("peak", right=True),
    ]
    rows = [
        [_range(first.stage, last.stage), in_runs([*first.layers, *(last.layers if last is not first else ())], 3),
         *(format_memory(first.categories[name]) for name in used), format_memory(first.peak_bytes)]
        for first, last in _alike(report.stages)
    ]  # fmt: skip
    fullest = report.fullest
    where = f"Stage {fullest.stage}, the fullest, holds" if len(report.stages) > 1 else "Every rank holds"
    said = [f"{where} {fullest.held_by}", report.verdict, *([hint] if hint else [])]
    notes = ["", *(f"{words[0].upper()}{words[1:]}." for words in said)]
    return table(f"Memory of one rank per stage under {report.layout}", headers, rows, notes=notes)


def _alike(stages: tuple[StageReport, ...]) -> list[tuple[StageReport, StageReport]]:
    """(first, last) of each run of stages with the same bytes."""
    runs: list[tuple[StageReport, StageReport]] = []
    for stage in stages:
        if runs and runs[-1][1].categories == stage.categories:
            runs[-1] = (runs[-1][0], stage)
        else:
            runs.append((stage, stage))
    return runs


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
