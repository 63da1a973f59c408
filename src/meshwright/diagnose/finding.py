"""What a diagnosis says: findings, headline first, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Confidence = Literal["high", "medium", "low"]
"""high: the evidence leaves no other cause. medium: it fits best, others are possible. low: a lead to follow."""

CONFIDENCES: tuple[str, ...] = get_args(Confidence)

Verdict = Literal["fault", "healthy", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: of the rule that found it, ``missing-rank``; its file under rules/ explains it.
        title: the headline, one sentence with ranks and numbers.
        ranks: the culprits, global and sorted; empty where no rank is to blame (a slow loader on all of them).
        group: name of the process group, None where it is about none.
        collective: what was being done there (``all_reduce 39416``), None where it is about none.
        evidence: sentences, the strongest first.
        remedy: what to do about it.
        confidence: see Confidence.
    """

    code: str
    title: str
    ranks: tuple[int, ...] = ()
    group: str | None = None
    collective: str | None = None
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    confidence: Confidence = "high"

    def as_json(self) -> dict[str, Any]:
        """The keys of the documentation's JSON page."""
        return {
            "code": self.code, "title": self.title, "ranks": list(self.ranks), "group": self.group, "collective": self.collective,
            "evidence": list(self.evidence), "remedy": self.remedy, "confidence": self.confidence,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The answer.

    Attributes:
        findings: headline first.
        verdict: "inconclusive" where something is wrong and the files do not show what, or where they are too few to tell.
        notes: one line per file that could not be read, and what else limits the answer.
        read: how much of what was read ("16 flight-recorder dumps").
    """

    findings: tuple[Finding, ...]
    verdict: Verdict
    notes: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 only where the job is healthy."""
        return 0 if self.verdict == "healthy" else 1

    def as_json(self) -> dict[str, Any]:
        return {
            "findings": [finding.as_json() for finding in self.findings],
            "verdict": self.verdict, "notes": list(self.notes), "read": list(self.read),
        }  # fmt: skip


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0 and 4``, ``ranks 0-7, 12``; "no rank" for none."""
    parts = _runs(sorted(set(ranks)))
    if not parts:
        return "no rank"
    word = "rank" if len(set(ranks)) == 1 else "ranks"
    return f"{word} {parts[0]} and {parts[1]}" if len(parts) == 2 else f"{word} {', '.join(parts)}"


def _runs(ranks: Sequence[int]) -> list[str]:
    """Three or more in a row become ``first-last``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return [part for run in runs for part in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
