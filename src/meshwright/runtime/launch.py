"""Runs a function on N ranks: on this machine through a warm fork server, or as what torchrun has started. No torch.

    results = run_ranks(train, world_size=8, args=(layout,), timeout_s=60)

The same program under ``torchrun --nproc-per-node 4 program.py`` calls the function in the process that torchrun made.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Mistake, NoAnswer
from meshwright.runtime import job as jobs
from meshwright.runtime.failures import RankFailure, RanksFailed, signal_message
from meshwright.runtime.fork_server import Exit
from meshwright.runtime.job import Job

_START_S = 120.0
"""Limit for the server's imports: 2-6 s warm, and up to 30 s on a busy machine with a cold file cache."""
_END_S = 15.0
"""What the server may need beyond a job's own limit to collect stacks and kill."""


def run_ranks(
    function: Callable[..., Any], world_size: int, args: tuple[Any, ...] = (), timeout_s: float = 60.0, join: bool = True
) -> list[Any]:
    """Call ``function(*args)`` on each rank, inside a process group over all of them (gloo); results in order of rank.

    Args:
        function: at the top level of a module. It finds its rank through ``torch.distributed``.
        world_size: number of ranks; under torchrun it must be the job's.
        args: picklable, as must be the results.
        timeout_s: limit of the whole job, start included, and of each collective.
        join: False for processes that know nothing of each other and make no group, or one of their own (runtime.dry);
            under torchrun there is always a group.

    Raises:
        RanksFailed: a rank raised, died or hung; the first cause comes first. No process is left behind.
        InputError: torch is not installed, or world_size is not the torchrun job's.
        TypeError: function or args cannot be sent to another process.
    """
    _require_torch()
    if under_torchrun():
        return _run_under_torchrun(function, world_size, args, timeout_s)
    folder = Path(tempfile.mkdtemp(prefix="meshwright_"))
    try:
        job = jobs.make_job(folder, function, world_size, args, timeout_s, join)
        exits = _server().run(job)
        return _results(job, exits)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def _run_under_torchrun(function: Callable[..., Any], world_size: int, args: tuple[Any, ...], timeout_s: float) -> list[Any]:
    started = int(os.environ["WORLD_SIZE"])
    if started != world_size:
        raise InputError([Mistake(
            "torchrun", "nproc-per-node x nnodes", started, str(world_size), "start as many ranks as the layout has",
            "is not the number of ranks",
        )])  # fmt: skip
    from meshwright.runtime.rank_program import run_torchrun_rank

    return run_torchrun_rank(function, args, timeout_s)


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InputError([Mistake(
            "", "torch", None, "torch 2.13 or later", 'pip install "meshwright[runtime]"', "is not installed; running a layout needs it",
        )])  # fmt: skip


def _results(job: Job, exits: Sequence[Exit]) -> list[Any]:
    failures = []
    finished = []
    for exit_ in exits:
        failure = _failure(job, exit_)
        if failure is None:
            finished.append(exit_.rank)
        else:
            failures.append(failure)
    if failures:
        raise RanksFailed(failures, finished, job.world_size, job.timeout_s)
    return [pickle.loads(job.file(rank, "result").read_bytes()) for rank in range(job.world_size)]


def _failure(job: Job, exit_: Exit) -> RankFailure | None:
    rank = exit_.rank
    output = jobs.tail(job.file(rank, "out"))
    raised = jobs.read_error(job, rank, output)
    if raised is not None:
        return raised
    stack = jobs.tail(job.file(rank, "stack"), num_lines=200)
    if exit_.ended_by_us:
        return RankFailure(rank=rank, kind="hang", when_s=exit_.when_s, message="did not end", stack=stack, output=output)
    if exit_.code < 0:
        message = signal_message(-exit_.code)
        return RankFailure(rank=rank, kind="signal", when_s=exit_.when_s, message=message, stack=stack, output=output)
    if exit_.code or not job.file(rank, "result").exists():
        message = f"exited with code {exit_.code} and no result"
        return RankFailure(rank=rank, kind="exit", when_s=exit_.when_s, message=message, stack=stack, output=output)
    return None


class ForkServer:
    """A running fork server (fork_server.py), and the pipe to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
            environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
            # Not by -m: what it sends back must be of the module's classes, not of __main__'s.
            start = f"from meshwright.runtime.fork_server import main; main({theirs.fileno()})"
            command = [sys.executable, "-c", start]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, start_new_session=True, stdin=subprocess.DEVNULL
            )
        self._connection = Connection(ours.detach())
        self._lock = threading.Lock()
        problem = self._receive(_START_S)
        if problem is not None:
            self.close()
            raise NoAnswer(f"the fork server could not start: {problem}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: Job) -> list[Exit]:
        """Run a job to its end; one at a time."""
        with self._lock:
            try:
                self._connection.send(job)
                exits: list[Exit] = self._receive(job.timeout_s + _END_S)
            except BaseException:  # also Ctrl-C: the server must not go on with a job that nobody waits for
                self.close()
                raise
            return exits

    def _receive(self, limit_s: float) -> Any:
        try:
            if self._connection.poll(limit_s):
                return self._connection.recv()
        except (EOFError, OSError):
            raise NoAnswer(f"the fork server died (exit code {self._process.wait()})") from None
        self.close()
        raise NoAnswer(f"the fork server did not answer within {limit_s:g} s")

    def close(self) -> None:
        """End the server; it kills its ranks when the pipe closes."""
        self._connection.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_default: dict[int, ForkServer] = {}
"""By process id: a forked child must not talk through its parent's pipe."""


def _server() -> ForkServer:
    """The server of this process, started at its first job and again if it has died."""
    server = _default.get(os.getpid())
    if server is None or not server.alive:
        server = _default[os.getpid()] = ForkServer()
    return server


@atexit.register
def close_server() -> None:
    """End this process' fork server, if it has one."""
    server = _default.pop(os.getpid(), None)
    if server is not None:
        server.close()
