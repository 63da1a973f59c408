"""Recordings beside a plan: nothing where they agree, else the first call that does not; and the plan judges between two ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.judge import judge
from meshwright.job import Job
from meshwright.recording.read import Recording
from meshwright.spec.cluster import Cluster
from meshwright.spec.workload import Training
from synthetic_recordings import DENSE, EXPERTS, expected_of, ledger_of, recorded


def run(model=DENSE, layout: str = "tp=2 sp dp=1x1 zero=1 mb=1") -> tuple[Job, list[Recording]]:
    ledger = ledger_of(model, layout)
    workload = Training(seq=24, batch=2 * ledger.layout.dp * ledger.layout.mb, precision="float64")
    cluster: Cluster | None = None
    job = Job(model=model, cluster=cluster, workload=workload, layouts=(ledger.layout,))
    finished = [
        replace(recording, events=tuple(replace(event, completed_s=event.enqueued_s) for event in recording.events))
        for recording in recorded(ledger, expected_of(ledger))
    ]
    return job, finished


def change(recording: Recording, number: int, **values: object) -> Recording:
    events = list(recording.events)
    events[number] = replace(events[number], **values)  # type: ignore[arg-type]
    return replace(recording, events=tuple(events))


@pytest.mark.parametrize(("model", "layout"), [(DENSE, "tp=2 sp dp=1x1 zero=1 mb=1"), (EXPERTS, "ep=2 dp=1x2 mb=1")])
def test_a_run_as_planned_gives_nothing(model, layout: str) -> None:
    job, recordings = run(model, layout)
    assert judge(Evidence(pieces=tuple(recordings), plan=job)).verdict == "healthy"


def test_what_all_ranks_do_alike_and_was_not_planned() -> None:
    job, recordings = run()
    wrong = [change(recording, 4, payload_bytes=16) for recording in recordings]
    assert judge(Evidence(pieces=tuple(wrong))).verdict == "healthy"
    headline = judge(Evidence(pieces=tuple(wrong), plan=job)).findings[0]
    assert (headline.code, headline.ranks) == ("not-as-planned", (0, 1))
    assert "16" in headline.title and recordings[0].events[4].module in headline.title


def test_the_plan_tells_which_of_two_ranks_is_wrong() -> None:
    job, recordings = run()
    number = next(event.index for event in recordings[1].events if event.module == "layers.0.mlp.down")
    wrong = [recordings[0], change(recordings[1], number, op="broadcast")]
    alone = judge(Evidence(pieces=tuple(wrong))).findings[0]
    beside = judge(Evidence(pieces=tuple(wrong), plan=job)).findings[0]
    assert alone.code == "op-mismatch" and 1 in alone.ranks
    assert beside.ranks == (1,)
