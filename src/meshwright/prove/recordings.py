"""Where the ranks of a proof write their recordings, and what of them can be read afterwards."""

from __future__ import annotations

from pathlib import Path

from meshwright.errors import InputError, Mistake
from meshwright.prove.question import Question
from meshwright.recording.read import Recording, read_recording


def recording_folder(question: Question, temporary: Path) -> Path:
    """The folder that the user wants them in, or one inside ``temporary``.

    Raises:
        InputError: there are recordings of another run in it.
    """
    if question.folder is None:
        return temporary / "recording"
    if any(question.folder.glob("*.jsonl")):
        problem = "holds recordings of another run"
        raise InputError(
            [Mistake("--record", "record", str(question.folder), "a new folder, or one without *.jsonl files", problem=problem)]
        )
    return question.folder


def recordings_in(folder: Path) -> list[Recording]:
    """By rank. A file without a sound header is left out: its rank died before it had done anything."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            found.append(read_recording(path))
        except InputError:
            continue
    return sorted(found, key=lambda recording: recording.rank)
