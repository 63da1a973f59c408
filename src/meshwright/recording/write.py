"""Writes one rank's recording."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from meshwright.recording.events import Completion, Event, Header, to_line


def file_name(rank: int) -> str:
    """``rank_00003.jsonl``: sorts by rank up to 100,000 ranks."""
    return f"rank_{rank:05d}.jsonl"


class RecordingWriter:
    """Appends a rank's events to its file in a folder; safe to call from the threads that complete collectives.

    Args:
        folder: made if it is not there; a file of the same rank in it is replaced.
        header: of this rank.
        flush_each: hand every line to the operating system at once (``--record=safe``): a killed process then leaves
            its last event; a killed machine may not. Costs one write per event.
    """

    def __init__(self, folder: Path, header: Header, *, flush_each: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / file_name(header.rank)
        self._flush_each = flush_each
        self._lock = threading.Lock()
        self._file = self.path.open("w", encoding="utf-8")
        self._put(header)

    def event(self, event: Event) -> None:
        self._put(event)

    def completed(self, index: int, started_s: float | None, completed_s: float | None) -> None:
        """The times of an event that was written before. After ``close`` it is dropped: the event stays "not yet"."""
        self._put(Completion(completes=index, started_s=started_s, completed_s=completed_s))

    def _put(self, record: Header | Event | Completion) -> None:
        line = to_line(record) + "\n"
        with self._lock:
            if self._file.closed:
                return
            self._file.write(line)
            if self._flush_each:
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
