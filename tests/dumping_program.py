"""A program of three gloo ranks that write their flight-recorder dumps, as pickle and as JSON, after what went wrong."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as recorder

RANKS = 3
CULPRIT = 1
LIMIT = timedelta(seconds=4)


def run(fault: str, folder: str) -> None:
    rank = dist.get_rank()
    pair, all_ranks = dist.new_group([0, 1], timeout=LIMIT), dist.new_group([0, 1, 2], timeout=LIMIT)
    try:
        for _ in range(3):
            dist.all_reduce(torch.ones(4), group=all_ranks)
            if rank < 2:
                dist.all_reduce(torch.ones(2), group=pair)
        last(fault if rank == CULPRIT else "", all_ranks)
    except RuntimeError:
        pass  # the time-out of those that wait
    for kind, dump in (("pickle", recorder._dump_fr_trace), ("json", recorder._dump_fr_trace_json)):
        text = dump()
        (Path(folder) / kind).mkdir(exist_ok=True)
        (Path(folder) / kind / f"dump_{rank}").write_bytes(text if isinstance(text, bytes) else text.encode())


def last(fault: str, group: dist.ProcessGroup) -> None:
    if fault == "missing":
        time.sleep(LIMIT.total_seconds() + 1)
    elif fault == "op":
        dist.broadcast(torch.ones(8), 0, group=group)
    else:
        dist.all_reduce(torch.ones(8), group=group)
