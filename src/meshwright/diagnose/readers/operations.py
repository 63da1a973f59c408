"""Tables of operations of pipelined jobs, in parquet files."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.readers.reader import Reader
from meshwright.diagnose.slow.operation_graph import graph_of
from meshwright.diagnose.source import Source, Unreadable
from meshwright.recording.operations import MissingReader, is_parquet, read_operations

MAX_BYTES = 1 << 30
"""The published tables take ten bytes a row: a hundred million rows."""


def recognises(source: Source) -> bool:
    return is_parquet(source.head)


def read(source: Source) -> Iterator[object]:
    """The OperationGraph."""
    try:
        yield graph_of(read_operations(source.read(MAX_BYTES), source.name))
    except ValueError as problem:
        raise Unreadable(str(problem)) from None
    except MissingReader:
        raise Unreadable("is a parquet file, which takes pyarrow to read: `pip install meshwright[parquet]`") from None


READER = Reader(kind=("table of operations", "tables of operations"), recognises=recognises, read=read)
