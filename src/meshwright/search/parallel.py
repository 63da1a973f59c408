"""Spread a search over processes: each structure is a task, the largest first; and a question about all that was found beside another.

Small spaces stay in this process. Workers are forked, so that they start with everything imported, where the platform can
fork and this process runs a single thread; otherwise the search runs here.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from meshwright.search.evaluate import Found, Question, evaluate

Structure = tuple[int, str, bool]

T = TypeVar("T")

WORTH_FORKING = 2_000
"""Sets of degrees above which two processes beat one (a set has some hundred layouts; a fork costs tens of ms)."""

WORTH_A_PROCESS = 1_000
"""Segments that fit, from which on one question about them takes longer than a fork."""


def evaluate_all(question: Question, progress: Callable[[int, int, Found], None] | None = None) -> Found:
    """Price the whole space.

    Args:
        progress: called with (structures done, structures, found so far).
    """
    sizes = {structure: len(question.space.column(*structure)) for structure in question.space.structures()}
    tasks = sorted((structure for structure, size in sizes.items() if size), key=lambda structure: -sizes[structure])
    total = Found()
    with _no_cycles():
        for done, found in enumerate(_results(question, tasks, sum(sizes.values())), start=1):
            total.merge(found)
            if progress is not None:
                progress(done, len(tasks), total)
    total.segments.sort(key=_order)
    return total


@contextmanager
def _no_cycles() -> Iterator[None]:
    """Without the collector of cycles, of which pricing makes none: it would walk over all that is priced again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _order(segment: object) -> tuple[object, ...]:
    """Segments in one order whichever process was first, so that ties always fall the same way."""
    column = segment.column  # type: ignore[attr-defined]
    return (
        column.pp, column.cp_kind, column.sp, column.zero, column.zero_variant, column.schedule, column.virtual_stages, column.recompute
    )  # fmt: skip


def _results(question: Question, tasks: list[Structure], size: int) -> Iterator[Found]:
    workers = min(os.cpu_count() or 1, len(tasks))
    if size < WORTH_FORKING or workers < 2 or not _can_fork():
        yield from (evaluate(question, *task) for task in tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_remember, initargs=(question,)) as pool:
        for future in as_completed([pool.submit(_evaluate_remembered, task) for task in tasks]):
            yield future.result()


def beside(work: Callable[[], T], segments: int) -> Callable[[], T]:
    """Start some work on what a search has found beside this process, if that is much and the machine can; what is returned waits for its
    result (or does the work). What the work changes in memory stays in its own process."""
    if segments < WORTH_A_PROCESS or (os.cpu_count() or 1) < 2 or not _can_fork():
        return work
    pool = ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=_remember, initargs=(work,))
    future = pool.submit(_work_remembered)

    def result() -> T:
        with pool:
            found: T = future.result()
        return found

    return result


def _can_fork() -> bool:
    return sys.platform == "linux" and threading.active_count() == 1


_REMEMBERED: list[Any] = []


def _remember(what: object) -> None:
    """In a worker: it reaches it by the fork, since a user's constraints need not be picklable."""
    _REMEMBERED[:] = [what]


def _evaluate_remembered(task: Structure) -> Found:
    return evaluate(_REMEMBERED[0], *task)


def _work_remembered() -> Any:
    return _REMEMBERED[0]()
