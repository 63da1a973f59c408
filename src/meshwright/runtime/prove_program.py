"""The process that proofs run in: it reads requests from its standard input and answers each with a line.

    request:  {"folder": F}      F/job.pickle holds the ProofJob's arguments and the limit of time; for a dry run those of DryJob, and ranks
    answer:   {"status": "ran" | "failed" | "refused" | "no answer", ...}

What came out lies in the folder: ``reference.npz`` and ``parallel.npz`` (numbers of one device and of the ranks put together), and the
recordings. It stays warm between requests: torch is imported once, and the ranks come from its fork server.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from meshwright.errors import InputError, MeshwrightError
from meshwright.runtime.dry_rank import DryJob, run_dry_rank
from meshwright.runtime.failures import RanksFailed
from meshwright.runtime.launch import run_ranks
from meshwright.runtime.proof_job import Experts, ProofJob, RankResult, Whole, assemble, run_proof_rank, run_reference


def main() -> None:
    """Answer until the input ends."""
    answers = _private_stdout()
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(answer(Path(json.loads(line)["folder"]))), file=answers, flush=True)


def _private_stdout() -> TextIO:
    """Standard output for answers alone: whatever else prints goes to standard error, ranks that are forked included."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.set_inheritable(private.fileno(), False)
    os.dup2(2, 1)
    return private


def answer(folder: Path, run_rank: Callable[[ProofJob, int, Experts], RankResult] = run_proof_rank) -> dict[str, Any]:
    """Run one job, ``run_rank`` on each rank; errors of ours become answers, others end the process with their traceback."""
    request = pickle.loads((folder / "job.pickle").read_bytes())
    try:
        return _dry(request) if "dry_ranks" in request else _proof(folder, request, run_rank)
    except InputError as error:
        return {"status": "refused", "mistakes": [mistake.as_json() for mistake in error.mistakes]}
    except RanksFailed as error:
        return {"status": "failed", "message": str(error), "failures": [_failure(failure) for failure in error.failures]}
    except MeshwrightError as error:
        return {"status": "no answer", "message": str(error)}


def _proof(folder: Path, request: dict[str, Any], run_rank: Callable[[ProofJob, int, Experts], RankResult]) -> dict[str, Any]:
    timeout_s = request.pop("timeout_s")
    job = ProofJob(**request)
    reference = run_reference(job)
    _save(folder / "reference.npz", reference)
    results = run_ranks(run_rank, job.layout.world_size, (job, reference.seed, _told(job, reference)), timeout_s)
    parallel = assemble(job, results)
    _save(folder / "parallel.npz", parallel)
    return _ran(reference, parallel, results)


def _told(job: ProofJob, reference: Whole) -> Experts:
    """The experts that ranks are told to take: see run_proof_rank."""
    return () if job.precision == "float64" else reference.experts


def _dry(request: dict[str, Any]) -> dict[str, Any]:
    """Some ranks of a job, one after the other, each in a process of its own."""
    timeout_s, ranks = request.pop("timeout_s"), request.pop("dry_ranks")
    job = DryJob(**request)
    measured = {rank: run_ranks(run_dry_rank, 1, (job, rank), timeout_s, join=False)[0] for rank in ranks}
    return {
        "status": "ran",
        "saved_bytes": {rank: saved for rank, (saved, _) in measured.items()},
        "in_flight": {rank: in_flight for rank, (_, in_flight) in measured.items()},
        "versions": {"torch": torch.__version__},
    }


def _ran(reference: Whole, parallel: Whole, results: list[RankResult]) -> dict[str, Any]:
    return {
        "status": "ran",
        "seed": reference.seed,
        "drift": parallel.drift,
        "saved_bytes": {result.rank: result.saved_bytes for result in results},
        "resident_bytes": {result.rank: result.resident_bytes for result in results},
        "in_flight": {result.rank: result.most_in_flight for result in results},
        "versions": {"torch": torch.__version__},
    }


def _failure(failure: Any) -> dict[str, Any]:
    return {"rank": failure.rank, "kind": failure.kind, "message": failure.message, "when_s": failure.when_s, "stack": failure.stack}


def _save(file: Path, whole: Whole) -> None:
    """Losses, norms, gradients of each step and weights, under names that say which."""
    arrays: dict[str, Any] = {"losses": np.asarray(whole.losses), "gradient_norms": np.asarray(whole.gradient_norms)}
    for step, gradients in enumerate(whole.gradients):
        arrays |= {f"gradients/{step}/{name}": value for name, value in gradients.items()}
    arrays |= {f"weights/{name}": value for name, value in whole.weights.items()}
    if whole.loads is not None:
        arrays["loads"] = whole.loads
    np.savez(file, **arrays)


if __name__ == "__main__":
    main()
