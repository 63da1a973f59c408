"""Proofs of one case after the other through one warm program, and of a runtime that was changed on purpose."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.prove.certificate import Certificate
from meshwright.prove.program import ProofProgram
from meshwright.prove.question import Question
from meshwright.prove.run import prove
from proof_cases import Case

RANKS = 8
TIMEOUT_S = 100.0
"""Of one proof: a hundred times what it takes on a quiet machine, and less than a test may take."""


def proved(case: Case, program: ProofProgram, dtype: str = "float64", steps: int = 3, folder: Path | None = None) -> Certificate:
    """The certificate of one case, run as it is."""
    question = Question(
        model=case.model, workload=case.workload, layout=case.layout, ranks=RANKS, dtype=dtype, steps=steps, dropout=case.rate,
        folder=folder, timeout_s=TIMEOUT_S,
    )  # fmt: skip
    certificate = prove(question, program)
    assert certificate.scaled == (), "a case of the matrix is small enough to run as it is"
    return certificate


class WithRankProgram(ProofProgram):
    """The proof program in this process, with another function on the ranks."""

    def __init__(self, run_rank: Callable[..., Any]) -> None:
        super().__init__()
        self._run_rank = run_rank

    def run(self, folder: Path, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        from meshwright.runtime.prove_program import answer

        (folder / "job.pickle").write_bytes(pickle.dumps({**request, "timeout_s": timeout_s}))
        through_a_pipe: dict[str, Any] = json.loads(json.dumps(answer(folder, self._run_rank)))
        return through_a_pipe
