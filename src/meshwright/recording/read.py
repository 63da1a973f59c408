"""Reads recordings. A line that is torn or wrong is told, and the rest is used: recordings often come from dead ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.errors import InputError, Mistake, Mistakes
from meshwright.recording.events import BadRecord, Completion, Event, Header, parse_header, parse_record
from meshwright.spec.files import open_regular


@dataclass(frozen=True, kw_only=True)
class BadLine:
    """A line that was left out. number: from 1."""

    number: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One rank's recording: events in order of index, completions merged into them."""

    header: Header
    events: tuple[Event, ...]
    bad_lines: tuple[BadLine, ...] = ()
    path: str = ""

    @property
    def rank(self) -> int:
        return self.header.rank


def read_recording(path: Path) -> Recording:
    """Read one rank's file.

    Raises:
        InputError: the file cannot be read, is empty, or its first line is not a header of this schema.
    """
    try:
        with open_regular(path) as stream:
            text = stream.read().decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    try:
        return parse_recording(text, str(path))
    except BadRecord as error:
        raise _unreadable(path, f"its first line is not a header: {error}") from None


def parse_recording(text: str, path: str) -> Recording:
    """The recording in the text of a file. Raises BadRecord where its first line is not a header."""
    first, _, rest = text.partition("\n")
    header = parse_header(first)
    events, bad_lines = _read_events(rest)
    return Recording(header=header, events=events, bad_lines=bad_lines, path=path)


def _read_events(text: str) -> tuple[tuple[Event, ...], tuple[BadLine, ...]]:
    events: dict[int, Event] = {}
    bad_lines = []
    for number, line in enumerate(text.split("\n"), start=2):
        if not line.strip():
            continue
        try:
            _take(parse_record(line), events)
        except BadRecord as error:
            bad_lines.append(BadLine(number=number, problem=str(error)))
    return tuple(events[index] for index in sorted(events)), tuple(bad_lines)


def _take(record: Event | Completion, events: dict[int, Event]) -> None:
    if isinstance(record, Event):
        if record.index in events:
            raise BadRecord(f"event {record.index} is there twice")
        events[record.index] = record
    elif record.completes not in events:
        raise BadRecord(f"completes event {record.completes}, which is not there")
    else:
        event = events[record.completes]
        events[record.completes] = replace(event, started_s=record.started_s, completed_s=record.completed_s)


def read_recordings(folder: Path) -> list[Recording]:
    """Every ``*.jsonl`` of a folder, in order of rank. Ranks may be missing: ``missing_ranks`` says which.

    Raises:
        InputError: no file, a file without a header, two files of one rank, or files of different jobs.
    """
    try:
        paths = sorted(folder.glob("*.jsonl"))
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise _unreadable(folder, error.strerror or str(error)) from None
    with Mistakes.of(str(folder)) as mistakes:
        if not paths:
            mistakes.add("", None, "a folder with one rank_*.jsonl per rank", problem="has no recording")
        recordings = []
        for path in paths:
            try:
                recordings.append(read_recording(path))
            except InputError as error:
                mistakes.found.extend(error.mistakes)
        _check_one_job(recordings, mistakes)
    return sorted(recordings, key=lambda recording: recording.rank)


def _check_one_job(recordings: list[Recording], mistakes: Mistakes) -> None:
    by_rank: dict[int, Recording] = {}
    for recording in recordings:
        other = by_rank.setdefault(recording.rank, recording)
        if other is not recording:
            mistakes.add("rank", recording.rank, "one file per rank", problem=f"is in {other.path} and in {recording.path}")
    for key in ("world_size", "plan_hash"):
        values = {getattr(recording.header, key) for recording in recordings}
        if len(values) > 1:
            mistakes.add(key, sorted(map(str, values)), "one value", "keep one run per folder", "differs between the files")


def missing_ranks(recordings: Iterable[Recording]) -> tuple[int, ...]:
    """Ranks of the job that left no recording."""
    known = list(recordings)
    world_size = max((recording.header.world_size for recording in known), default=0)
    return tuple(sorted(set(range(world_size)) - {recording.rank for recording in known}))


def _unreadable(path: Path, problem: str) -> InputError:
    return InputError([Mistake(str(path), "", None, "a recording of one rank, as `--record` writes it", problem=problem)])
