"""Programs of three gloo ranks, rank 1 of which does something wrong in its second step; everything is recorded."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.recording.events import Group
from meshwright.recording.write import RecordingWriter
from meshwright.runtime.recorder import Recorder, header
from meshwright.runtime.scope import at

RANKS = 3
CULPRIT = 1
WORLD = Group(name="dp.0", axis="dp", ranks=tuple(range(RANKS)))


def run(fault: str, folder: str) -> None:
    rank = dist.get_rank()
    with RecordingWriter(Path(folder), header(rank, RANKS, [WORLD]), flush_each=True) as writer:
        with Recorder(writer, {dist.group.WORLD.group_name: WORLD}):
            for step in range(3):
                mine = fault if (rank, step) == (CULPRIT, 1) else ""
                if mine == "missing":
                    return  # as a loader that has run dry
                with at(step=step):
                    train_step(mine)


def train_step(fault: str) -> None:
    gradient, other = torch.full((6, 4), 1.0), torch.full((6, 4), 2.0)
    if fault == "dtype":
        gradient = gradient.int()
    if fault == "shape":
        gradient = gradient[:5]
    if fault == "op":
        dist.broadcast(gradient, 0)
    elif fault == "swap":
        reduce_other(other)
        reduce_gradient(gradient)
    else:
        reduce_gradient(gradient)
        if fault != "left-out":
            reduce_other(other)
    rows = torch.zeros(6, 4)
    received = [2, 3, 1] if fault == "splits" else [2, 2, 2]
    dist.all_to_all_single(torch.zeros(6, 4), rows, received, [2, 2, 2])


def reduce_gradient(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient)


def reduce_other(other: torch.Tensor) -> None:
    dist.all_reduce(other)
