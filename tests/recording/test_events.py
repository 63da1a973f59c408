"""The schema: what is written reads back, and a wrong line is told by its key."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.recording.events import (
    KINDS,
    PHASES,
    SCHEMA,
    BadRecord,
    Completion,
    Event,
    Group,
    Header,
    parse_header,
    parse_record,
    to_line,
)
from meshwright.recording.read import missing_ranks, read_recording, read_recordings
from meshwright.recording.write import RecordingWriter, file_name

HEADER = Header(
    plan_hash="abc", world_size=4, rank=2, coordinates={"tp": 0, "pp": 1}, groups=(Group(name="tp.1", axis="tp", ranks=(2, 3)),),
    host="node", pid=7, wall_offset_s=1.5, versions={"torch": "2.13.0"},
)  # fmt: skip

numbers = st.integers(0, 2**62)
times = st.none() | st.floats(0, 1e9)
events = st.builds(
    Event, index=numbers, kind=st.sampled_from(KINDS), step=st.none() | numbers, micro_batch=st.none() | numbers, chunk=st.none() | numbers,
    phase=st.sampled_from(("", *PHASES)), module=st.text(), call_site=st.text(), op=st.text(), reduce_op=st.text(), group=st.text(),
    seq=st.none() | numbers, peer=st.none() | numbers, tag=st.none() | numbers, dtype=st.text(),
    shape=st.lists(numbers, max_size=4).map(tuple), payload_bytes=numbers, input_splits=st.lists(numbers, max_size=3).map(tuple),
    output_splits=st.lists(numbers, max_size=3).map(tuple), asynchronous=st.booleans(),
    enqueued_s=times, started_s=times, completed_s=times,
)  # fmt: skip


@given(events)
def test_an_event_reads_back_as_it_was_written(event: Event) -> None:
    line = to_line(event)
    assert "\n" not in line
    assert parse_record(line) == event


def test_the_header_reads_back_as_it_was_written() -> None:
    assert parse_header(to_line(HEADER)) == HEADER
    assert json.loads(to_line(HEADER))["schema"] == SCHEMA


def test_default_values_are_left_out() -> None:
    assert json.loads(to_line(Event(index=0, kind="mark", op="step begins"))) == {"index": 0, "kind": "mark", "op": "step begins"}


def test_a_key_of_a_later_version_is_ignored() -> None:
    assert parse_record('{"index":3,"kind":"mark","colour":"red"}') == Event(index=3, kind="mark")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"index":1,"kind":"colle', "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"kind":"mark"}', "`index` is missing"),
        ('{"index":1,"kind":"dance"}', "`kind` is 'dance'"),
        ('{"index":true,"kind":"mark"}', "`index` is True, not a whole number"),
        ('{"index":1,"kind":"mark","shape":[1,"2"]}', "`shape`"),
        ('{"completes":"1"}', "`completes`"),
        ('{"index":1,"kind":"mark","shape":[-1]}', "`shape`"),
        ('{"index":1,"kind":"mark","enqueued_s":NaN}', "`enqueued_s`"),
        ('{"index":1,"kind":"mark","enqueued_s":1' + 400 * "0" + "}", "`enqueued_s`"),
        ('{"index":' + 100_000 * "[", "nested too deeply"),
    ],
)
def test_a_wrong_line_names_its_key(line: str, told: str) -> None:
    with pytest.raises(BadRecord, match=told):
        parse_record(line)


@pytest.mark.parametrize(
    "values", [{"rank": -1}, {"rank": 4}, {"world_size": 10**12}, {"groups": [{"name": "a", "axis": "tp", "ranks": [10**9]}]}]
)
def test_a_header_of_no_job_is_refused(values: dict[str, object]) -> None:
    """Who is missing is told rank by rank: a damaged number of ranks must not be believed."""
    with pytest.raises(BadRecord, match="rank"):
        parse_header(json.dumps({**json.loads(to_line(HEADER)), **values}))


def write(folder, rank: int = 2, **header: object):
    from dataclasses import replace

    with RecordingWriter(folder, replace(HEADER, rank=rank, **header)) as writer:
        writer.event(Event(index=0, kind="collective", op="all_reduce", enqueued_s=1.0))
        writer.event(Event(index=1, kind="mark"))
        writer.completed(0, None, 2.0)
    return writer.path


def test_completions_are_merged(tmp_path) -> None:
    path = write(tmp_path)
    assert path.name == file_name(2)
    recording = read_recording(path)
    assert recording.header == HEADER and recording.rank == 2
    assert [(event.index, event.completed_s) for event in recording.events] == [(0, 2.0), (1, None)]
    assert recording.bad_lines == ()


def test_bad_lines_are_told_and_the_rest_is_read(tmp_path) -> None:
    path = write(tmp_path)
    with path.open("a") as file:
        file.write('{"index":0,"kind":"mark"}\n{"completes":9}\n{"index":2,"kind":"mark"}\n{"index":3,"ki')
    recording = read_recording(path)
    assert [event.index for event in recording.events] == [0, 1, 2]
    assert [bad.number for bad in recording.bad_lines] == [5, 6, 8]
    assert "twice" in recording.bad_lines[0].problem and "9" in recording.bad_lines[1].problem


def test_flushing_leaves_every_line_without_a_close(tmp_path) -> None:
    writer = RecordingWriter(tmp_path, HEADER, flush_each=True)
    writer.event(Event(index=0, kind="mark"))
    assert [event.index for event in read_recording(writer.path).events] == [0]
    writer.close()
    writer.completed(0, None, 1.0)  # a collective that completes late must not fail
    assert read_recording(writer.path).events[0].completed_s is None


@pytest.mark.parametrize("text", ["", "{}\n", '{"schema":"meshwright.recording/99","world_size":1,"rank":0}\n', "\x00\x01"])
def test_a_file_without_a_header_is_refused(tmp_path, text: str) -> None:
    path = tmp_path / "rank_00000.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="not a header"):
        read_recording(path)
    with pytest.raises(InputError, match="No such file"):
        read_recording(tmp_path / "nothing.jsonl")


def test_a_folder_is_read_in_order_and_its_mistakes_are_told_together(tmp_path) -> None:
    for rank in (3, 0, 1):
        write(tmp_path, rank)
    recordings = read_recordings(tmp_path)
    assert [recording.rank for recording in recordings] == [0, 1, 3]
    assert missing_ranks(recordings) == (2,)
    (tmp_path / "copy.jsonl").write_text((tmp_path / file_name(0)).read_text())
    write(tmp_path, 2, plan_hash="other")
    (tmp_path / "torn.jsonl").write_text("{")
    with pytest.raises(InputError) as caught:
        read_recordings(tmp_path)
    assert {mistake.key for mistake in caught.value.mistakes} == {"", "rank", "plan_hash"}
    with pytest.raises(InputError, match="no recording"):
        read_recordings(tmp_path / "empty")


def test_completion_lines_read_alone() -> None:
    assert parse_record(to_line(Completion(completes=4, completed_s=1.0))) == Completion(completes=4, completed_s=1.0)
