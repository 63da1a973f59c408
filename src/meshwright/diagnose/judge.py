"""From files to a diagnosis: read everything, ask every rule, put the headline first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.finding import CONFIDENCES, Diagnosis, Finding, Verdict
from meshwright.diagnose.job import job_of
from meshwright.diagnose.readers import READERS
from meshwright.diagnose.readers.reader import Gathered, gather
from meshwright.diagnose.rulebook import FAULTS, KINDS, rulebook
from meshwright.errors import InputError, Mistake

if TYPE_CHECKING:
    from meshwright.job import Job

LEGAL = "flight-recorder dumps, Kineto traces, torch's or NCCL's logs, py-spy dumps, or recordings of `prove`"
HINT = "`meshwright diagnose --what-to-collect` says how to get them"


def evidence_of(paths: Sequence[Path], plan: Job | None = None) -> tuple[Evidence, Gathered]:
    """Everything that can be read below ``paths``.

    Raises:
        InputError: nothing can; each file is told.
    """
    gathered = gather(paths, READERS)
    if not gathered.pieces:
        raise InputError(_mistakes(paths, gathered))
    return Evidence(pieces=gathered.pieces, plan=plan), gathered


def diagnose(paths: Sequence[Path], plan: Job | None = None) -> Diagnosis:
    """What is wrong with the job that left these files.

    Args:
        paths: files, or folders of them. plan: what the job was to do, if that is known.

    Raises:
        InputError: none of the files can be read.
    """
    evidence, gathered = evidence_of(paths, plan)
    return judge(evidence, gathered.notes, gathered.read)


def judge(evidence: Evidence, notes: Sequence[str] = (), read: Sequence[str] = ()) -> Diagnosis:
    """Ask every rule."""
    told: list[tuple[tuple[float, ...], str, Finding]] = []
    for rule in rulebook():
        for hit in rule.detect(evidence):
            finding = rule.finding(hit)
            told.append(((KINDS.index(rule.kind), -hit.weight, CONFIDENCES.index(finding.confidence)), rule.kind, finding))
    told.sort(key=lambda each: each[0])
    kinds = {kind for _, kind, _ in told}
    verdict: Verdict = "fault" if kinds & set(FAULTS) else "inconclusive" if "doubt" in kinds else "healthy"
    notes = (*notes, *evidence.derived(job_of).left_out)
    return Diagnosis(findings=tuple(finding for *_, finding in told), verdict=verdict, notes=notes, read=tuple(read))


def _mistakes(paths: Sequence[Path], gathered: Gathered) -> list[Mistake]:
    if not gathered.problems:
        return [Mistake(", ".join(map(str, paths)), "", None, LEGAL, HINT, "holds no file")]
    return [Mistake(name, "", None, LEGAL, HINT, problem) for name, problem in gathered.problems]
