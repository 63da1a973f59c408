"""The kinds of file that can be read. Each reader knows its kind by content, never by name alone."""

from __future__ import annotations

from meshwright.diagnose.readers import flight_recorder, job_log, kineto, operations, py_spy, recording
from meshwright.diagnose.readers.reader import Reader

READERS: tuple[Reader, ...] = (
    recording.READER, kineto.READER, operations.READER, flight_recorder.READER, py_spy.READER, job_log.READER,
)  # fmt: skip
"""In the order in which they are asked; the first that recognises a file reads it. Logs come last: they are read through to be told."""
