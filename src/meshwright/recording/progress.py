"""Where a rank is, written anew every few seconds while it runs: one small JSON file per rank, replaced as a whole.

    {"schema": "meshwright.progress/1", "rank": 3, "world_size": 8, "host": "node1", "pid": 4711, "interval_s": 5.0,
     "written_s": 1764000000.0, "step": 12, "calls": 813,
     "groups": [{"name": "tp.0", "axis": "tp", "ranks": [2, 3], "enqueued": 402, "completed": 401}]}

``enqueued`` and ``completed`` count the group's collectives from the start, ``calls`` everything that the rank sent or received. A file
that is no longer replaced is a process that does not run; whoever others wait for, and who waits for nobody, is the one to look at.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.recording.events import MAX_RANKS, checked, columns_of, json_object
from meshwright.spec.files import open_regular

SCHEMA = "meshwright.progress/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupProgress:
    """A rank's counts of one group's collectives."""

    name: str
    axis: str
    ranks: tuple[int, ...]
    enqueued: int = 0
    completed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a rank is.

    Attributes:
        written_s: seconds since the epoch, on the rank's host. interval_s: between two writings.
        step: of the run, None before the first. calls: collectives, sends and receives so far. ended: it will not write again.
    """

    rank: int
    world_size: int
    written_s: float
    interval_s: float
    host: str = ""
    pid: int = 0
    step: int | None = None
    calls: int = 0
    ended: bool = False
    groups: tuple[GroupProgress, ...] = ()


def file_name(rank: int) -> str:
    """``progress_00003.json``."""
    return f"progress_{rank:05d}.json"


def is_progress(name: str) -> bool:
    """Whether a file is called as ``file_name`` calls them."""
    return re.fullmatch(r"progress_[0-9]{5,}\.json", name) is not None


def write_progress(folder: Path, progress: Progress) -> None:
    """Replace the rank's file, so that a reader sees the old one or the new one."""
    path = folder / file_name(progress.rank)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"schema": SCHEMA} | asdict(progress)), encoding="utf-8")
    os.replace(fresh, path)


def read_progress(folder: Path) -> list[Progress]:
    """All ranks' files that can be read, in order of rank. What is not a progress file is left out."""
    try:
        paths = sorted(folder.glob("progress_*.json"))
    except OSError:  # a name that is too long, a folder that may not be read
        paths = []
    found = map(parse_progress, paths)
    return sorted((progress for progress in found if progress is not None), key=lambda progress: progress.rank)


def parse_progress(path: Path) -> Progress | None:
    """None where the file is gone, torn, or of another schema."""
    try:
        with open_regular(path) as stream:
            values = json_object(stream.read().decode("utf-8"))
        if values.get("schema") != SCHEMA:
            return None
        told = checked(values, _PROGRESS)
        groups = tuple(GroupProgress(**checked(group, _GROUP)) for group in told.get("groups", ()))
    except (OSError, ValueError, TypeError):  # BadRecord is a ValueError; a group that is no object a TypeError
        return None
    progress = Progress(**(told | {"groups": groups}))
    return progress if 0 <= progress.rank < progress.world_size <= MAX_RANKS and progress.interval_s > 0 else None


_PROGRESS, _GROUP = columns_of(Progress), columns_of(GroupProgress)
