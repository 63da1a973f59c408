"""Flight-recorder dumps made by hand, as torch 2.4 and newer write them for NCCL."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def entry(group: tuple[str, str], op: str, number: int, record: int, done: bool = False, **values: Any) -> dict[str, Any]:
    """One entry; p2p ops are written ``send 0->3``."""
    p2p = op.startswith(("send", "recv"))
    size = values.pop("size", [64, 128])
    return {
        "frames": [], "record_id": record, "pg_id": int(group[0]), "process_group": group, "collective_seq_id": 0 if p2p else number,
        "p2p_seq_id": number if p2p else 0, "op_id": record, "profiling_name": f"nccl:{op}", "time_created_ns": 10**18 + record * 1000,
        "input_sizes": [size], "input_dtypes": ["BFloat16"], "output_sizes": [size], "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": done, "timeout_ms": 600000, "is_p2p": p2p,
    } | values  # fmt: skip


def dump(
    groups: Mapping[tuple[str, str], Sequence[int]], entries: Sequence[dict[str, Any]], status: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    """A rank's dump. status: (last enqueued, last completed) by the group's number."""
    return {
        "version": "2.9", "nccl_version": "2.27.3",
        "pg_config": {name: {"name": name, "desc": desc, "ranks": str(list(ranks))} for (name, desc), ranks in groups.items()},
        "pg_status": {
            number: {"last_enqueued_collective": enqueued, "last_started_collective": -1, "last_completed_collective": completed}
            for number, (enqueued, completed) in status.items()
        },
        "entries": list(entries),
    }  # fmt: skip


WORLD = ("0", "default_pg")


def write_tp_dp_job(folder: Path, tp: int, dp: int, calls: int, culprit: int, missing: Sequence[int] = ()) -> None:
    """A job of tp x dp ranks in which ``culprit`` stops before the last of ``calls`` tp collectives; ``missing`` ranks leave no dump.

    The members of its tp group wait there; all others wait for these in a dp all_reduce, and were at work longer.
    """
    world = tp * dp
    for rank in range(world):
        if rank in missing:
            continue
        # torch numbers the groups of a job, and all ranks call one by one number.
        mine, data = (str(1 + rank // tp), "TENSOR_MODEL_PARALLEL_GROUP"), (str(1 + dp + rank % tp), "DATA_PARALLEL_GROUP")
        first = rank // tp * tp
        groups = {WORLD: range(world), mine: range(first, first + tp), data: range(rank % tp, world, tp)}
        held = culprit // tp == rank // tp
        reached = calls - (rank == culprit)
        entries = [entry(mine, "all_reduce", number, number, done=number < calls or not held) for number in range(1, reached + 1)]
        if not held:
            entries.append(entry(data, "all_reduce", 1, calls + 1))
        status = {"0": (0, 0), mine[0]: (reached, reached - (held and rank != culprit)), data[0]: (int(not held), 0)}
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(dump(groups, entries, status), protocol=2))
