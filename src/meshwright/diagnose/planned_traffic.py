"""Recordings against what the plan says each rank sends: the ledger's list, as a proof compares it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.waits import standstill
from meshwright.diff.mismatch import Mismatch, in_order
from meshwright.diff.traffic import compare_rank
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.ledger.build import Ledger, build
from meshwright.ledger.expected import expected_events
from meshwright.prove.run import precision_name
from meshwright.prove.scale import Scaled, scale
from meshwright.prove.stages import schedule_of
from meshwright.recording.read import Recording
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import PRECISIONS

BY_LOAD = ("bytes", "splits")
"""What of experts' messages depends on the router, whose choices a recording does not hold."""


def against_plan(evidence: Evidence) -> tuple[Mismatch, ...]:
    """Where the recordings are not what the plan says, first divergence first; () without a plan or recordings.

    The plan is taken as it is and as a proof on that many ranks would scale it; the nearer one counts.
    """
    plan, recordings = evidence.plan, evidence.of(Recording)
    if plan is None or plan.workload is None or not recordings:
        return ()
    finished = not evidence.derived(standstill).ends
    compared = [_compare(run, plan, recordings, finished) for run in _runs(plan, recordings[0].header.world_size)]
    return min(compared, key=len, default=())


def _runs(plan: Job, world_size: int) -> Iterator[Scaled]:
    assert plan.workload is not None
    as_it_is = Scaled(model=plan.model, workload=plan.workload, layout=plan.layout)
    if plan.layout.world_size == world_size:
        yield as_it_is
    try:
        scaled = scale(plan.model, plan.workload, plan.layout, world_size)
    except InputError:
        return
    if scaled.layout.world_size == world_size and scaled != as_it_is:
        yield scaled


def _compare(run: Scaled, plan: Job, recordings: Sequence[Recording], finished: bool) -> tuple[Mismatch, ...]:
    ledger = _ledger(run, plan, recordings)
    schedule = schedule_of(run.layout, run.workload, None)
    steps = 1 + max((event.step or 0 for recording in recordings for event in recording.events), default=0)
    found: list[Mismatch] = []
    for recording in recordings:
        found += compare_rank(expected_events(ledger, recording.rank, steps, None, schedule), recording, finished)
    told = (mismatch for mismatch in found if not (mismatch.kind in BY_LOAD and ".moe." in mismatch.module))
    return tuple(in_order(mismatch for mismatch in told if finished or mismatch.kind != "unfinished"))


def _ledger(run: Scaled, plan: Job, recordings: Sequence[Recording]) -> Ledger:
    """With the precision that the recordings show: proofs run in float64 whatever the plan's is."""
    sent = {event.dtype for recording in recordings for event in recording.events}
    dtype = next((dtype for dtype in ("float64", "bf16", "float32") if dtype in sent), "bf16")
    assert plan.workload is not None
    name = precision_name(dtype, run.layout, plan.workload.precision)
    return build(run.model, run.workload, run.layout, STACKS["meshwright"], PRECISIONS[name])
