"""A table of the operations of a pipelined job: what each worker did, step by step, and when.

The form is that of the traces published with "Understanding Stragglers in Large Model Training Using What-if Analysis"
(arXiv 2505.05713): a parquet file with a row per operation of one worker per (pipeline stage, data-parallel rank).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["COLUMNS", "MAX_ROWS", "BadTable", "MissingReader", "Operations", "is_parquet", "read_operations"]

COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id")
"""What must be there. Used if it is: ``rank`` (global), ``gmc`` (the model chunk, counted over all stages)."""

MAX_ROWS = 100_000_000
"""A row expands to some 60 bytes; the largest published job has a hundred thousand."""


class BadTable(ValueError):
    """Not such a table; its text says why, to follow the file's name."""


class MissingReader(Exception):
    """pyarrow is not installed."""


@dataclass(frozen=True, kw_only=True)
class Operations:
    """The table in columns, a row per operation.

    Attributes:
        data_rank, stage: the worker. step: of training. sequence: number of the operation among the worker's of this kind and step.
        kind: index into ``kinds`` (``forward-compute``). chunk: of the model, -1 where the operation belongs to none.
        start_s, end_s: seconds from the step's beginning.
        rank: global, of each (data rank, stage).
    """

    path: str
    data_rank: NDArray[np.int64]
    stage: NDArray[np.int64]
    step: NDArray[np.int64]
    sequence: NDArray[np.int64]
    kind: NDArray[np.int64]
    chunk: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    kinds: tuple[str, ...]
    rank: dict[tuple[int, int], int]


def is_parquet(head: bytes) -> bool:
    return head.startswith(b"PAR1")


def read_operations(data: bytes, path: str) -> Operations:
    """The table in a parquet file's bytes.

    Raises:
        MissingReader: pyarrow is not installed.
        BadTable: it is another table, empty, damaged or larger than MAX_ROWS.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingReader from None
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(data))
        if missing := [name for name in COLUMNS if name not in file.schema_arrow.names]:
            raise BadTable(f"is a table without the columns {', '.join(missing)}: not one of operations")
        if not 0 < file.metadata.num_rows <= MAX_ROWS:
            raise BadTable(f"has {file.metadata.num_rows:,} rows")
        wanted = [*COLUMNS, *(name for name in ("rank", "gmc") if name in file.schema_arrow.names)]
        table = file.read(columns=wanted)
        kinds = (
            table["optype"].combine_chunks().dictionary_encode()
            if not _is_dictionary(table["optype"])
            else table["optype"].combine_chunks()
        )
        return _operations(table, kinds, path)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadTable(f"is damaged ({str(error).splitlines()[0][:120]})") from None


def _is_dictionary(column: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_dictionary(column.type))


def _operations(table: Any, kinds: Any, path: str) -> Operations:
    import numpy as np

    def whole(name: str) -> NDArray[np.int64]:
        return np.asarray(table[name].to_numpy(), dtype=np.int64)

    start = np.asarray(table["start_ts"].to_numpy(), dtype=np.float64)
    data_rank, stage = whole("dp_rank"), whole("stage")
    stages = int(stage.max()) + 1
    workers = np.unique(data_rank * stages + stage, return_index=True)[1]
    ranks = whole("rank") if "rank" in table.column_names else data_rank * stages + stage
    return Operations(
        path=path, data_rank=data_rank, stage=stage, step=whole("step"), sequence=whole("seq_id"),
        kind=np.asarray(kinds.indices.to_numpy(), dtype=np.int64), kinds=tuple(kinds.dictionary.to_pylist()),
        chunk=whole("gmc") if "gmc" in table.column_names else stage, start_s=start,
        end_s=start + np.asarray(table["duration"].to_numpy(), dtype=np.float64),
        rank={(int(data_rank[row]), int(stage[row])): int(ranks[row]) for row in workers},
    )  # fmt: skip
