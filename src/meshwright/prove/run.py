"""One proof from plan to certificate: scale, run on processes, compare numbers, traffic and memory."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from meshwright.diff.traffic import Traffic, compare_traffic
from meshwright.errors import InputError, Mistake
from meshwright.ledger.build import Ledger, build
from meshwright.ledger.expected import expected_events
from meshwright.prove.certificate import Certificate, Memory
from meshwright.prove.compare import BOUNDS, Errors, Numbers, compare_numbers, read_numbers
from meshwright.prove.first_wrong import first_wrong
from meshwright.prove.program import ProofProgram, require_torch
from meshwright.prove.question import Question, versions
from meshwright.prove.recordings import recording_folder, recordings_in
from meshwright.prove.resident import compare_resident
from meshwright.prove.saved import compare_memory
from meshwright.prove.scale import Scaled, scale
from meshwright.prove.stages import notes_on, refuse_scaled, schedule_of
from meshwright.recording.crosscheck import cross_check
from meshwright.recording.read import Recording
from meshwright.spec.layout import Layout
from meshwright.spec.rules import check
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import PRECISIONS

CHOICES_TOLD = "every token takes the experts that it took on one device: roundings would turn choices over"
"""What a proof of experts does not judge where it is not in float64."""


def prove(question: Question, program: ProofProgram | None = None) -> Certificate:
    """Run the proof.

    Args:
        program: a warm one; else one is started and ended here.

    Raises:
        InputError: torch is missing, the layout is illegal or cannot be scaled to the ranks, or the runtime refuses it.
    """
    require_torch()
    check(question.model, question.workload, question.layout)
    schedule_of(question.layout, question.workload, question.schedule)
    scaled = scale(question.model, question.workload, question.layout, question.ranks)
    refuse_scaled(question.schedule, question.layout, scaled.changes)
    with tempfile.TemporaryDirectory(prefix="meshwright_proof_") as temporary:
        folder = Path(temporary)
        recording = recording_folder(question, folder)
        began = time.monotonic()
        answer = _run(question, scaled, folder, recording, program)
        if answer["status"] == "refused":
            raise InputError([Mistake(**mistake) for mistake in answer["mistakes"]])
        return _judge(question, scaled, folder, recordings_in(recording), answer, time.monotonic() - began)


def precision_name(dtype: str, layout: Layout, asked: str | None) -> str:
    """The recipe that computes in ``dtype``: for bf16 the plan's own, or the layout's default."""
    if dtype != "bf16":
        return dtype
    if asked in PRECISIONS and PRECISIONS[asked].activation == "bf16" and asked != "fp8":
        return str(asked)
    return "fsdp" if layout.zero == 3 else "bf16"


def _run(question: Question, scaled: Scaled, folder: Path, recording: Path, program: ProofProgram | None) -> dict[str, Any]:
    request = {
        "model": scaled.model, "workload": scaled.workload, "layout": scaled.layout, "seed": question.seed, "steps": question.steps,
        "precision": precision_name(question.dtype, scaled.layout, question.workload.precision), "dropout": question.dropout,
        "recording": str(recording), "plan_hash": question.plan_hash, "schedule": question.schedule,
    }  # fmt: skip
    if program is not None:
        return program.run(folder, request, question.timeout_s)
    with ProofProgram() as own:
        return own.run(folder, request, question.timeout_s)


def _judge(
    question: Question, scaled: Scaled, folder: Path, recordings: list[Recording], answer: dict[str, Any], seconds: float
) -> Certificate:
    """Compare whatever the run has left."""
    ran = answer["status"] == "ran"
    reference = read_numbers(folder / "reference.npz") if (folder / "reference.npz").exists() else None
    parallel = read_numbers(folder / "parallel.npz") if ran and reference else None
    errors = compare_numbers(parallel, reference) if parallel and reference else None
    first = first_wrong(parallel, reference, BOUNDS[question.dtype]) if parallel and reference else None
    ledger = ledger_of(question, scaled)
    traffic = _traffic(question, ledger, recordings, reference, finished=ran)
    problems = [] if ran else [answer["message"].partition("\n  stack of")[0]]
    return Certificate(
        plan_hash=question.plan_hash, versions=versions(answer), dtype=question.dtype, bound=BOUNDS[question.dtype],
        ranks=scaled.layout.world_size, model=question.model.name, layout=str(scaled.layout), plan_layout=str(question.layout),
        seq=scaled.workload.seq, batch=scaled.workload.batch, steps=question.steps, seed=answer.get("seed"),
        scaled=scaled.changes, lost=scaled.lost, **_figures(errors, answer, first), predicted=traffic.predicted, recorded=traffic.recorded,
        mismatches=traffic.mismatches, disagreements=tuple(found.message for found in cross_check(recordings)),
        memory=_memory(question, ledger, answer, reference),
        failures=tuple(answer.get("failures", ())), problems=tuple(problems) + (errors.problems if errors else ()), seconds=seconds,
        notes=notes_on(scaled.layout, question.schedule)
        + (() if scaled.model.moe is None or question.dtype == "float64" else (CHOICES_TOLD,)),
    )  # fmt: skip


def ledger_of(question: Question, scaled: Scaled) -> Ledger:
    """The ledger of what is run."""
    name = precision_name(question.dtype, scaled.layout, question.workload.precision)
    return build(scaled.model, scaled.workload, scaled.layout, STACKS["meshwright"], PRECISIONS[name])


def _traffic(question: Question, ledger: Ledger, recordings: list[Recording], reference: Numbers | None, finished: bool) -> Traffic:
    if reference is None:
        return Traffic(predicted=0, recorded=0, mismatches=())
    ranks, schedule = range(ledger.layout.world_size), schedule_of(ledger.layout, ledger.workload, question.schedule)
    expected = {rank: expected_events(ledger, rank, question.steps, reference.loads, schedule) for rank in ranks}
    return compare_traffic(expected, recordings, finished)


def _memory(question: Question, ledger: Ledger, answer: dict[str, Any], reference: Numbers | None) -> Memory | None:
    if answer["status"] != "ran" or reference is None:
        return None
    schedule = schedule_of(ledger.layout, ledger.workload, question.schedule)
    activations = compare_memory(ledger, answer, None if reference.loads is None else reference.loads[0], schedule)
    return activations.plus(compare_resident(ledger, answer["resident_bytes"]))


def _figures(errors: Errors | None, answer: dict[str, Any], first: str | None) -> dict[str, Any]:
    if errors is None:
        return {}
    worst = []
    if errors.worst_gradient:
        worst.append(f"gradient of {errors.worst_gradient[1]} in step {errors.worst_gradient[0]}: {errors.gradient:.2e}")
    if errors.worst_weight:
        worst.append(f"weight {errors.worst_weight}: {errors.weight:.2e}")
    return {
        "max_loss_error": errors.loss, "max_grad_error": errors.gradient, "max_weight_error": errors.weight, "max_norm_error": errors.norm,
        "first": first, "worst": tuple(worst), "drift": answer["drift"],
    }  # fmt: skip
