"""A diagnosis as text: the headline, its evidence, its remedy; then what else was found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.diagnose.finding import Diagnosis, Finding
from meshwright.render.text import wrapped

if TYPE_CHECKING:
    from meshwright.diagnose.evidence import Evidence

VERDICTS = {
    "fault": "fault found",
    "healthy": "nothing wrong found",
    "inconclusive": "something is wrong, or too little is there to tell; the files do not show which",
}

MAX_NOTES = 20


def diagnosis_text(diagnosis: Diagnosis, evidence: Evidence | None = None) -> str:
    """The lines of a terminal; with the evidence, tables of where the step goes."""
    lines = [f"read: {', '.join(diagnosis.read) or 'nothing'}", ""]
    for number, finding in enumerate(diagnosis.findings):
        lines += [*_finding_lines(finding, headline=number == 0), ""]
    lines += _tables(evidence)
    lines.append(f"verdict: {VERDICTS[diagnosis.verdict]}")
    if diagnosis.notes:
        lines += ["", "left out:", *(f"  {_one_line(note)}" for note in diagnosis.notes[:MAX_NOTES])]
        if len(diagnosis.notes) > MAX_NOTES:
            lines.append(f"  ... and {len(diagnosis.notes) - MAX_NOTES:,} more")
    return "\n".join(lines)


def _one_line(note: str) -> str:
    """A note begins with the name of a file, which may hold line ends."""
    return note.replace("\r", "\\r").replace("\n", "\\n")


def _tables(evidence: Evidence | None) -> Iterator[str]:
    if evidence is not None:
        from meshwright.render.diagnose_step import step_tables

        for each in step_tables(evidence):
            yield from (each.text(), "")


def _finding_lines(finding: Finding, headline: bool) -> Iterator[str]:
    yield from wrapped(finding.title, "" if headline else "also: ")
    yield f"  [{finding.code}, confidence {finding.confidence}]"
    for sentence in finding.evidence:
        yield from wrapped(sentence, "  - ")
    yield from wrapped(finding.remedy, "  remedy: ")
