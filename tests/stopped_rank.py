"""A program of four ranks that write their progress; the test stops one of them from outside."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.recording.events import Group
from meshwright.runtime.progress import ProgressSink
from meshwright.runtime.recorder import Recorder, header
from meshwright.runtime.scope import at

RANKS = 4
INTERVAL_S = 0.2
WORLD = Group(name="dp.0", axis="dp", ranks=tuple(range(RANKS)))


def run(folder: str) -> None:
    """Steps until the file ``end`` is there on all ranks."""
    with ProgressSink(Path(folder), header(dist.get_rank(), RANKS, [WORLD]), interval_s=INTERVAL_S) as sink:
        with Recorder(sink, {dist.group.WORLD.group_name: WORLD}):
            ends, step = torch.zeros(()), 0
            while not ends:
                with at(step=step):
                    ends.fill_(float((Path(folder) / "end").exists()))
                    dist.all_reduce(ends)
                step += 1
                time.sleep(0.02)
