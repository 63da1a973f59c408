"""Recordings of ranks that died early are read as far as they go; those of another run are not mixed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.prove.question import Question
from meshwright.prove.recordings import recording_folder, recordings_in
from meshwright.recording.events import Event, Header
from meshwright.recording.write import RecordingWriter
from meshwright.spec.layout import Layout
from meshwright.spec.workload import Training
from synthetic_recordings import DENSE


def question(folder: Path | None) -> Question:
    return Question(model=DENSE, workload=Training(seq=24, batch=4), layout=Layout(), folder=folder)


def test_a_folder_with_other_recordings_is_refused(tmp_path):
    kept = tmp_path / "kept"
    assert recording_folder(question(kept), tmp_path) == kept
    with RecordingWriter(kept, Header(world_size=1, rank=0)):
        pass
    with pytest.raises(InputError, match="recordings of another run"):
        recording_folder(question(kept), tmp_path)
    assert recording_folder(question(None), tmp_path) == tmp_path / "recording"


def test_what_dead_ranks_left_is_read_as_far_as_it_goes(tmp_path):
    for rank in (2, 0):
        with RecordingWriter(tmp_path, Header(world_size=4, rank=rank)) as writer:
            writer.event(Event(index=0, kind="mark", op="here"))
    with (tmp_path / "rank_00000.jsonl").open("a") as torn:
        torn.write('{"index": 1, "kind": "coll')
    (tmp_path / "rank_00001.jsonl").write_text("")  # killed before its header
    (tmp_path / "rank_00003.jsonl").write_text('{"schema": "mesh')
    found = recordings_in(tmp_path)
    assert [(recording.rank, len(recording.events), len(recording.bad_lines)) for recording in found] == [(0, 1, 1), (2, 1, 0)]
    assert recordings_in(tmp_path / "nowhere") == []
