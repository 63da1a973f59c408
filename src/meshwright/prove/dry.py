"""A plan at its true size, without numbers and without GPUs: distinct ranks run one by one on tensors that have shapes only, and
what they would send and keep is compared with the ledger.

Two programs share the ranks, because one rank is one core's work.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from meshwright.diff.traffic import compare_traffic
from meshwright.errors import InputError, Mistake
from meshwright.ledger.build import Ledger, build, precision_of
from meshwright.ledger.expected import expected_events
from meshwright.ledger.order import layer_kinds
from meshwright.mesh import Mesh
from meshwright.prove.certificate import Certificate
from meshwright.prove.program import ProofProgram, require_torch
from meshwright.prove.question import Question, versions
from meshwright.prove.recordings import recording_folder, recordings_in
from meshwright.prove.saved import compare_memory
from meshwright.prove.stages import notes_on, schedule_of
from meshwright.recording.crosscheck import cross_check
from meshwright.recording.read import Recording
from meshwright.schedule import Schedule
from meshwright.spec.layout import Layout
from meshwright.spec.rules import check
from meshwright.spec.rules.rule import kv_heads
from meshwright.spec.stack import STACKS

PROGRAMS = 2
MEASURED = ("saved_bytes", "in_flight")
MOST_PLACES = 16
"""Places on tp x cp that are all run; of more, the first and the last on each axis."""


def prove_dry(question: Question) -> Certificate:
    """Run one step of every distinct rank.

    Raises:
        InputError: torch is missing, or the layout or its schedule is illegal.
    """
    require_torch()
    check(question.model, question.workload, question.layout)
    schedule = schedule_of(question.layout, question.workload, question.schedule)
    precision = precision_of(question.workload, question.layout)
    ledger = build(question.model, question.workload, question.layout, STACKS["meshwright"], precision)
    ranks = distinct_ranks(ledger)
    with tempfile.TemporaryDirectory(prefix="meshwright_dry_") as temporary:
        recording = recording_folder(question, Path(temporary))
        began = time.monotonic()
        answers = _run(question, ledger, ranks, Path(temporary), recording)
        return _judge(question, ledger, schedule, ranks, recordings_in(recording), answers, time.monotonic() - began)


def distinct_ranks(ledger: Ledger) -> list[int]:
    """Ranks whose place decides what they run: on pp, all of them (each has a list of its own); on tp (the last part of a padded
    vocabulary) and on cp (its tokens), all of them or the first and last; and the last of all, with the last, perhaps smaller, part of
    every shard. Between the ends of a pipeline, where no vocabulary is, the first on tp and cp stands for all of a stage, or, of every
    second one, the last."""
    layout, mesh = ledger.layout, Mesh(ledger.layout, kv_heads(ledger.model))
    ends = [sorted({0, degree - 1}) for degree in (layout.tp, layout.cp)]
    everywhere = [range(layout.tp), range(layout.cp)] if layout.tp * layout.cp <= MOST_PLACES else ends
    found = {layout.world_size - 1}
    for stage in ledger.stages():
        places = everywhere if stage.first or stage.last else [[degrees[-1 if stage.index % 2 else 0]] for degrees in ends]
        found |= {mesh.rank({"tp": tp, "cp": cp, "pp": stage.index}) for tp, cp in product(*places)}
    return sorted(found)


def even_load(ledger: Ledger) -> tuple[int, ...]:
    """Copies that every rank sends to each expert: equal, or one more for the first ones. () without experts."""
    moe = ledger.model.moe
    if moe is None:
        return ()
    share, more = divmod(int(ledger.sizes.dispatched_rows), moe.num_experts)
    return tuple(share + (expert < more) for expert in range(moe.num_experts))


def _run(question: Question, ledger: Ledger, ranks: Sequence[int], folder: Path, recording: Path) -> list[dict[str, Any]]:
    request = {
        "model": question.model, "workload": question.workload, "layout": question.layout, "precision": ledger.precision.name,
        "recording": str(recording), "even_load": even_load(ledger), "plan_hash": question.plan_hash,
        "schedule": question.schedule,
    }  # fmt: skip

    def run(number: int) -> dict[str, Any]:
        own = folder / str(number)
        own.mkdir()
        mine = list(ranks[number::PROGRAMS])
        with ProofProgram() as program:
            return program.run(own, {**request, "dry_ranks": mine}, question.timeout_s, len(mine))

    programs = min(PROGRAMS, len(ranks))
    with ThreadPoolExecutor(programs) as pool:
        return list(pool.map(run, range(programs)))


def loads_of(ledger: Ledger) -> Any:
    """The even load of all ranks, as expected_events wants it; takes no memory. None without experts."""
    import numpy as np

    load = even_load(ledger)
    if not load:
        return None
    layers = sum(layer_kinds(ledger.model))
    return np.broadcast_to(np.asarray(load), (1, int(ledger.micro_batches), layers, ledger.layout.world_size, len(load)))


def _judge(
    question: Question,
    ledger: Ledger,
    schedule: Schedule | None,
    ranks: Sequence[int],
    recordings: Sequence[Recording],
    answers: Sequence[dict[str, Any]],
    seconds: float,
) -> Certificate:
    for answer in answers:
        if answer["status"] == "refused":
            raise InputError([Mistake(**mistake) for mistake in answer["mistakes"]])
    ran = all(answer["status"] == "ran" for answer in answers)
    loads = loads_of(ledger)
    expected = {rank: expected_events(ledger, rank, 1, loads, schedule) for rank in ranks}
    traffic = compare_traffic(expected, recordings, finished=ran)
    measured = {key: {rank: of_rank for answer in answers for rank, of_rank in answer.get(key, {}).items()} for key in MEASURED}
    memory = compare_memory(ledger, measured, None if loads is None else loads[0], schedule)
    return Certificate(
        plan_hash=question.plan_hash, versions=versions(answers[0]), dtype=ledger.precision.name, bound=0.0, ranks=len(ranks),
        model=question.model.name, layout=str(question.layout), plan_layout=str(question.layout), seq=question.workload.seq,
        batch=question.workload.batch, steps=1, seed=None, predicted=traffic.predicted, recorded=traffic.recorded,
        mismatches=traffic.mismatches, disagreements=_disagreements(recordings, ledger.layout), memory=memory,
        failures=tuple(failure for answer in answers for failure in answer.get("failures", ())),
        problems=tuple(answer["message"].partition("\n  stack of")[0] for answer in answers if answer["status"] != "ran"),
        seconds=seconds, dry=True,
        notes=(f"ranks {', '.join(map(str, ranks))} of {ledger.layout.world_size:,}", *notes_on(question.layout, question.schedule)),
    )  # fmt: skip


def _disagreements(recordings: Sequence[Recording], layout: Layout) -> tuple[str, ...]:
    """Between the ranks that ran; their partners in most groups did not."""
    return tuple(found.message for found in cross_check(recordings)) if layout.world_size == len(recordings) else ()
