"""A recorded step becomes a timeline with the same waiting as the one that it was made from; what is no recorded pipeline is refused."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.recording.events import Event, Header
from meshwright.recording.read import Recording
from meshwright.recording.write import RecordingWriter
from meshwright.schedule import Kind, build
from meshwright.spec import names
from meshwright.timeline.costs import uniform_costs
from meshwright.timeline.events import Timeline
from meshwright.timeline.measured import KINDS, measured_step, read_measured
from meshwright.timeline.simulate import simulate
from meshwright.timeline.waiting import CAUSES, culprit, waiting_s

WORDS = {kind: word for word, kind in KINDS.items()}
LATE_S = 100.0
"""Where the recording's clock stands at the start."""

SCHEDULES = [("1f1b", 4, 1, 6), ("gpipe", 3, 1, 4), ("interleaved", 2, 3, 4), ("zb-h1", 4, 1, 8), ("zb-v", 3, 2, 6)]


def simulated(schedule: str, p: int, v: int, m: int, slow: int | None = None) -> Timeline:
    """F, I and W of 1, 1.2 and 0.7 seconds, messages of 0.25; one stage may be three times as slow."""
    times = np.ones(p * v) if slow is None else np.where(np.arange(p * v) == slow, 3.0, 1.0)
    order = build(schedule, p, v, m)
    return simulate(order, uniform_costs(order, times, 1.2 * times, 0.7 * times, 0.25))


def recorded(timeline: Timeline, step: int = 2, host: str = "here") -> list[Recording]:
    """What the ranks of this timeline would have recorded: their computations, and their receives."""
    found = []
    for rank in range(timeline.schedule.num_ranks):
        events: list[Event] = []
        for index in np.flatnonzero(timeline.rank == rank).tolist():
            kind, chunk, k = Kind(int(timeline.kind[index])), int(timeline.chunk[index]), int(timeline.micro_batch[index])
            source = int(timeline.producer[index])
            if source >= 0 and timeline.rank[source] != rank:
                phase = "forward" if kind == Kind.FORWARD else "backward_input"
                events.append(Event(index=len(events), kind="p2p", op="recv", module=names.PIPELINE, phase=phase, step=step, chunk=chunk,
                                    micro_batch=k, enqueued_s=LATE_S, completed_s=LATE_S + float(timeline.arrival_s[index])))  # fmt: skip
            start, end = (LATE_S + float(moments[index]) for moments in (timeline.start_s, timeline.end_s))
            events.append(Event(index=len(events), kind="compute", op=WORDS[kind], step=step, chunk=chunk, micro_batch=k, enqueued_s=start,
                                started_s=start, completed_s=end))  # fmt: skip
        header = Header(world_size=timeline.schedule.num_ranks, rank=rank, coordinates={"tp": 0, "pp": rank}, host=host)
        found.append(Recording(header=header, events=tuple(events)))
    return found


@pytest.mark.parametrize(("schedule", "p", "v", "m"), SCHEDULES)
def test_waiting_is_that_of_the_timeline_it_was_made_from(schedule: str, p: int, v: int, m: int):
    timeline = simulated(schedule, p, v, m)
    measured = measured_step(recorded(timeline), "here").timeline
    assert measured.schedule.actions == timeline.schedule.actions and measured.schedule.rank_of_chunk == timeline.schedule.rank_of_chunk
    np.testing.assert_allclose(measured.start_s, timeline.start_s, rtol=0, atol=1e-9)  # clocks at 100 s hold nine places
    before, after = waiting_s(timeline), waiting_s(measured)
    for cause in CAUSES:
        np.testing.assert_allclose(after[cause], before[cause], rtol=0, atol=1e-9, err_msg=cause)
    assert abs(measured.bubble_fraction - timeline.bubble_fraction) < 1e-9


def test_dualpipes_two_copies_are_seen():
    """A measured pair has two spans, so it is simulated without pairs here."""
    order = build("dualpipe", 2, 1, 8)
    order = replace(order, actions=tuple(tuple(action._replace(pairs_with_next=False) for action in actions) for actions in order))
    timeline = simulate(order, uniform_costs(order, 1.0, 1.0, 1.0, 0.1))
    schedule = measured_step(recorded(timeline), "here").timeline.schedule
    assert (schedule.copies, schedule.num_stages, schedule.rank_of_chunk) == (2, 2, (0, 1, 1, 0))


def test_the_slow_stage_is_at_fault():
    assert culprit(measured_step(recorded(simulated("1f1b", 4, 1, 8, slow=2)), "here").timeline) == 2


def test_the_ranks_own_program_is_not_the_messages_fault():
    """Between two forwards of the first stage, which need nothing, the rank itself is late; so it is where a message was there already."""
    timeline = simulated("gpipe", 2, 1, 2)
    first, second = recorded(timeline)
    late = [replace(e, started_s=e.started_s + 0.4, completed_s=e.completed_s + 0.4) if e.op == "forward" and e.micro_batch == 1 else e
            for e in first.events]  # fmt: skip
    waited = waiting_s(measured_step([replace(first, events=tuple(late)), second], "here").timeline)
    assert abs(waited["sending"][0] - 0.4) < 1e-9


def test_clocks_of_several_hosts_are_brought_together():
    timeline = simulated("1f1b", 2, 1, 4)
    moved = []
    for recording in recorded(timeline):
        offset = 1000.0 * recording.rank
        events = tuple(
            replace(
                event, **{key: getattr(event, key) - offset for key in ("enqueued_s", "started_s", "completed_s") if getattr(event, key)}
            )
            for event in recording.events
        )
        header = replace(recording.header, host=f"host{recording.rank}", wall_offset_s=offset)
        moved.append(replace(recording, header=header, events=events))
    np.testing.assert_allclose(measured_step(moved, "here").timeline.start_s, timeline.start_s, rtol=0, atol=1e-9)


def test_what_is_no_recorded_pipeline_is_refused(tmp_path: Path):
    both = recorded(simulated("1f1b", 2, 1, 4))
    with pytest.raises(InputError, match="was not recorded"):
        measured_step(both, "here", step=7)
    nothing = [replace(recording, events=tuple(event for event in recording.events if event.kind == "p2p")) for recording in both]
    with pytest.raises(InputError, match="no computations of a pipeline"):
        measured_step(nothing, "here")
    with pytest.raises(InputError, match="has no computations in step 2"):
        measured_step([both[0], nothing[1]], "here")
    with pytest.raises(InputError, match="has no recording"):
        read_measured(tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"chunk": None}, "lacks one of them"), ({"micro_batch": None}, "lacks one of them"), ({"chunk": 10**9}, "not all of the chunks"),
        ({"micro_batch": 10**9}, "no others before it"), ({"micro_batch": -1}, "does not pass this chunk"),
        ({"completed_s": None}, "is missing"),
        ({"started_s": None, "enqueued_s": None}, "is missing"), ({"op": "backward_weight"}, "comes before its forward"),
    ],
)  # fmt: skip
def test_a_damaged_computation_is_told(damage: dict[str, object], said: str):
    first, second = recorded(simulated("1f1b", 2, 1, 4))
    place = next(index for index, event in enumerate(first.events) if event.kind == "compute")
    events = [*first.events[:place], replace(first.events[place], **damage), *first.events[place + 1 :]]
    with pytest.raises(InputError, match=said):
        measured_step([replace(first, events=tuple(events)), second], "here")


JOB = ["llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "4", "--seq", "4096", "--batch", "6", "--layout", "pp=4 dp=1x1 mb=1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for recording in recorded(simulated("1f1b", 4, 1, 6, slow=1)):
        with RecordingWriter(tmp_path / "recording", recording.header) as writer:
            for event in recording.events:
                writer.event(replace(event, started_s=None, completed_s=None))
                writer.completed(event.index, event.started_s, event.completed_s)
    return tmp_path / "recording"


def test_the_command_draws_both(meshwright, folder: Path, tmp_path: Path):
    files = tmp_path / "trace.json", tmp_path / "grid.svg"
    text = meshwright("timeline", *JOB, "--recording", str(folder), "-o", str(files[0]), "--svg", str(files[1])).stdout
    assert text.count("rank 0  ") == 2 and "Predicted: the pipeline takes" in text and "Measured: step 2 on global ranks 0, 1, 2, 3" in text
    assert "The others wait for rank 1" in text
    trace = json.loads(files[0].read_text())["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in trace if event["name"] == "process_name"}
    assert [name for name in processes.values() if name.startswith("measured")] == [f"measured pp rank {r} (rank {r})" for r in range(4)]
    measured = {pid for pid, name in processes.items() if name.startswith("measured")}
    waits = {event["name"] for event in trace if event["pid"] in measured and event["ph"] == "X" and event["tid"] == 1}
    assert {"upstream", "downstream", "transfer"} <= waits
    assert len(ET.parse(files[1]).getroot().findall("{http://www.w3.org/2000/svg}svg")) == 2


def test_keys_beside_the_predictions(meshwright, folder: Path):
    found = json.loads(meshwright("timeline", *JOB, "--recording", str(folder), "--json").stdout)
    assert set(found["measured"]) == {"step", "step_s", "pipeline_s", "bubble_fraction", "ranks", "culprit"}
    assert [rank["global_rank"] for rank in found["measured"]["ranks"]] == [0, 1, 2, 3]
    total = [rank["busy_s"] + sum(rank["waiting_s"].values()) for rank in found["measured"]["ranks"]]
    np.testing.assert_allclose(total, found["measured"]["pipeline_s"], rtol=1e-9)


def test_a_recording_of_another_pipeline_is_refused(meshwright, folder: Path):
    result = meshwright("timeline", *JOB[:-1], "pp=2 dp=1x1 tp=2 mb=1", "--recording", str(folder), "--json")
    assert result.exit_code == 2
    errors = {error["key"]: (error["value"], error["legal"]) for error in json.loads(result.stdout)["errors"]}
    assert errors == {"pipeline ranks": (4, "2"), "chunks": (4, "2")}
