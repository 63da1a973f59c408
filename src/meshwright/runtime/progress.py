"""Writes where this rank is while it runs (recording/progress.py), beside its recording or without one.

with ProgressSink(folder, header, writer, interval_s=5) as sink, Recorder(sink, groups):
    ...
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from meshwright.recording.events import Event, Header
from meshwright.recording.progress import GroupProgress, Progress, write_progress
from meshwright.runtime.recorder import Sink


class ProgressSink:
    """A sink that counts what goes through it, and a thread that writes the counts.

    Args:
        folder: of all ranks' files. header: of this rank.
        behind: the sink that the events go on to; None to keep counts alone.
        interval_s: seconds between two writings.
    """

    def __init__(self, folder: Path, header: Header, behind: Sink | None = None, interval_s: float = 5.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._header, self._behind, self._interval_s = folder, header, behind, interval_s
        self._enqueued: Counter[str] = Counter()
        self._completed: Counter[str] = Counter()
        self._open: dict[int, str] = {}
        self._step: int | None = None
        self._calls = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, name="progress", daemon=True)

    def event(self, event: Event) -> None:
        self._step = event.step if event.step is not None else self._step
        if event.kind in ("collective", "p2p"):
            self._calls += 1
        if event.kind == "collective":
            self._enqueued[event.group] += 1
            self._open[event.index] = event.group
        if self._behind is not None:
            self._behind.event(event)

    def completed(self, index: int, started_s: float | None, completed_s: float | None) -> None:
        group = self._open.pop(index, None)
        if group is not None:
            self._completed[group] += 1
        if self._behind is not None:
            self._behind.completed(index, started_s, completed_s)

    def _keep_writing(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._write()

    def _write(self, ended: bool = False) -> None:
        header = self._header
        enqueued, completed = self._enqueued, self._completed
        groups = tuple(
            GroupProgress(name=each.name, axis=each.axis, ranks=each.ranks, enqueued=enqueued[each.name], completed=completed[each.name])
            for each in header.groups
        )
        write_progress(
            self._folder,
            Progress(
                rank=header.rank, world_size=header.world_size, host=header.host, pid=header.pid, written_s=time.time(),
                interval_s=self._interval_s, step=self._step, calls=self._calls, groups=groups, ended=ended,
            ),
        )  # fmt: skip

    def __enter__(self) -> ProgressSink:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._write(ended=error is None)
