"""Kineto traces, as torch.profiler writes them: one per rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshwright.diagnose.readers.reader import Reader
from meshwright.diagnose.source import Source, Unreadable
from meshwright.recording.json_events import BadTrace
from meshwright.recording.kineto import read_kineto

OBJECT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{.*"(?:traceEvents|schemaVersion|deviceProperties|baseTimeNanoseconds)"', re.DOTALL)
"""One of the keys that Kineto writes before the events; the events may begin far behind them."""

LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")


def recognises(source: Source) -> bool:
    head = source.head
    return OBJECT.match(head) is not None or (LIST.match(head) is not None and b'"ph"' in head and b'"ts"' in head)


def read(source: Source) -> Iterator[object]:
    """The Trace, read in pieces: the file may be larger than memory."""
    with source.stream() as stream:
        try:
            yield read_kineto(stream, source.name)
        except BadTrace as problem:
            raise Unreadable(str(problem)) from None


READER = Reader(kind=("Kineto trace", "Kineto traces"), recognises=recognises, read=read)
