"""What ``lint`` found, as text."""

from __future__ import annotations

from meshwright.diagnose.finding import Diagnosis
from meshwright.render.text import wrapped


def lint_text(answer: Diagnosis) -> str:
    """The job, a paragraph per finding, and what was assumed."""
    lines = wrapped(answer.read[0])
    for finding in answer.findings:
        lines += ["", *wrapped(finding.title), f"  [{finding.code}]", *wrapped(finding.remedy, "  remedy: ")]
    if not answer.findings:
        lines += ["", "nothing to object to"]
    if answer.notes:
        lines += ["", *(line for note in answer.notes for line in wrapped(note, "assumed: "))]
    return "\n".join(lines)
