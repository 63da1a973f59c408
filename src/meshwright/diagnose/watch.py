"""Names ranks that fall behind while a job runs, from the files of recording/progress.py, before any watchdog fires."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from meshwright.diagnose.calls import Call, RankCalls, Status
from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.standing import waiters
from meshwright.diagnose.waits import standstill
from meshwright.errors import InputError, Mistake
from meshwright.recording.events import Event, Group
from meshwright.recording.progress import Progress, read_progress

SILENT_INTERVALS = 3.0
"""Writings that a rank may miss: one is a busy machine or a slow file system."""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A rank that has fallen behind.

    Attributes:
        kind: "silent": its file is no longer written, the process is stopped, dead or cut off. "waited for": it runs, others wait for
            it, and nothing has moved for ``seconds``. "missing": it has never written.
        message: one line with who waits for it.
    """

    rank: int
    kind: Literal["silent", "waited for", "missing"]
    seconds: float
    message: str

    def as_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "kind": self.kind, "seconds": self.seconds, "message": self.message}


@dataclass
class Watcher:
    """Looks at the files again and again.

    Attributes:
        patience_s: nothing may move for as long without being told; 0 for three of the ranks' intervals.
    """

    patience_s: float = 0.0
    _seen: dict[int, tuple[tuple[object, ...], float]] = field(default_factory=dict)
    _written: dict[int, tuple[float, float]] = field(default_factory=dict)

    def look(self, progress: Sequence[Progress], now_s: float) -> list[Behind]:
        """Who has fallen behind; the longest silence first.

        Args:
            now_s: of any clock that only this watcher uses: hosts' clocks may differ, so only whether a file has changed counts.
        """
        for each in progress:
            self._note(self._written, each.rank, each.written_s, now_s)
            self._note(self._seen, each.rank, (each.calls, tuple(group.completed for group in each.groups)), now_s)
        running = [each for each in progress if not each.ended]
        if not running:
            return []
        limit_s = self.patience_s or SILENT_INTERVALS * max(each.interval_s for each in progress)
        silent = [self._behind(each, "silent", now_s - self._written[each.rank][1], progress) for each in running]
        found = [each for each in silent if each.seconds > limit_s]
        still_s = min(now_s - since for _, since in self._seen.values())
        known = {each.rank for each in found}
        if still_s > limit_s:
            by_rank = {each.rank: each for each in progress}
            for rank in waited_for(progress):
                if rank not in by_rank:
                    found.append(Behind(rank=rank, kind="missing", seconds=still_s, message=f"rank {rank} has written nothing"))
                elif rank not in known:
                    found.append(self._behind(by_rank[rank], "waited for", still_s, progress))
        return sorted(found, key=lambda each: (-each.seconds, each.rank))

    def _note(self, seen: dict[int, tuple[Any, float]], rank: int, value: object, now_s: float) -> None:
        if rank not in seen or seen[rank][0] != value:
            seen[rank] = (value, now_s)

    def _behind(self, each: Progress, kind: Literal["silent", "waited for"], seconds: float, progress: Sequence[Progress]) -> Behind:
        who = f"rank {each.rank} (process {each.pid} on {each.host or 'its host'})"
        what = "has not written for" if kind == "silent" else "runs, and nothing has moved for"
        waiting = _waiting_text(progress, each.rank)
        step = "" if each.step is None else f", in step {each.step}"
        return Behind(rank=each.rank, kind=kind, seconds=seconds, message=f"{who} {what} {seconds:.0f} s{step}{waiting}")


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Why watching ended: ranks that are behind, all ranks done, or the time over.

    Attributes:
        behind: the longest silence first; empty while nothing is wrong. done: all ranks wrote that they have ended.
    """

    behind: tuple[Behind, ...]
    done: bool

    def as_json(self) -> dict[str, Any]:
        """The keys of the command's answer."""
        return {"behind": [each.as_json() for each in self.behind]}


def watch(folder: Path, every_s: float = 5.0, patience_s: float = 0.0, limit_s: float | None = None, source: str = "watch()") -> Watched:
    """Look at a folder of progress files until a rank is behind, all are done, or the time is over.

    Args:
        every_s: between two looks. patience_s: see Watcher. limit_s: None for as long as it takes. source: for mistakes.

    Raises:
        InputError: the folder holds no progress that can be read.
    """
    if not read_progress(folder):
        problem = "holds no progress_*.json that can be read" if os.path.isdir(folder) else "is not a folder"
        raise InputError([Mistake(source, "FOLDER", str(folder), "a folder that ranks write their progress to", problem=problem)])
    watcher, began_s = Watcher(patience_s=patience_s), time.monotonic()
    while True:
        now_s = time.monotonic()
        progress = read_progress(folder)
        behind, done = watcher.look(progress, now_s), all(each.ended for each in progress)
        if behind or done or (limit_s is not None and now_s - began_s >= limit_s):
            return Watched(behind=tuple(behind), done=done)
        time.sleep(every_s if limit_s is None else min(every_s, max(0.1, limit_s - (now_s - began_s))))


def waited_for(progress: Sequence[Progress]) -> list[int]:
    """Ranks at which all waiting ends."""
    still = Evidence(pieces=tuple(map(_record, progress))).derived(standstill)
    return sorted(rank for end in still.ends if len(end) == 1 and still.waiting_for(end) for rank in end)


def _waiting_text(progress: Sequence[Progress], rank: int) -> str:
    still = Evidence(pieces=tuple(map(_record, progress))).derived(standstill)
    for wait, ranks in waiters(still, (rank,)):
        verb = "waits" if len(ranks) == 1 else "wait"
        return f"; {ranks_text(ranks)} {verb} for it in collective {wait.call.event.seq} of {wait.call.event.group}"
    return ""


def _record(progress: Progress) -> RankCalls:
    """The counts as a dump would show them: each group's oldest collective that is not completed."""
    pending = [group for group in progress.groups if group.enqueued > group.completed]
    calls = [
        Call(event=Event(index=place, kind="collective", op="collective", group=group.name, seq=group.completed + 1), done=False)
        for place, group in enumerate(pending)
    ]
    return RankCalls(
        rank=progress.rank, source="", kind="dump", world_size=progress.world_size, calls=tuple(calls), sees_p2p=False,
        groups={group.name: Group(name=group.name, axis=group.axis, ranks=group.ranks) for group in progress.groups},
        status={group.name: Status(enqueued=group.enqueued, completed=group.completed) for group in progress.groups},
    )  # fmt: skip
