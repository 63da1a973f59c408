"""Our own recordings: one JSONL file per rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshwright.diagnose.readers.reader import Reader
from meshwright.diagnose.source import Source, Unreadable
from meshwright.recording.events import BadRecord
from meshwright.recording.read import parse_recording

MAX_BYTES = 1 << 30
"""An event is about 300 bytes: three million events of one rank."""


def recognises(source: Source) -> bool:
    return re.match(rb'\s*\{\s*"schema"\s*:\s*"meshwright\.recording/', source.head) is not None


def read(source: Source) -> Iterator[object]:
    """The Recording; lines that are torn are left out of it, and counted in it."""
    text = source.read(MAX_BYTES).decode("utf-8", errors="replace")
    try:
        yield parse_recording(text, source.name)
    except BadRecord as error:
        raise Unreadable(f"its first line is not a header: {error}") from None


READER = Reader(kind=("recording", "recordings"), recognises=recognises, read=read)
