"""A process that has imported torch, and forks ranks on request: eight are up in 0.2 s, against 10 s from scratch.

It never computes: forking a process that has run torch's threads can hang. It talks over one pipe (``Connection``) to
the process that started it: in comes a ``Job``, out goes a list of ``Exit`` when all of its ranks are gone. When the
pipe closes it kills its ranks and exits; ranks die with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from meshwright.runtime.job import Job, load_module

PRELOAD = (
    "torch", "torch.distributed", "torch.distributed.fsdp", "torch.distributed.device_mesh", "torch.distributed.tensor",
    # torch imports it at the first operator under a dispatch mode, which would cost every rank a second
    "torch._dynamo",
    "torch.testing._internal.distributed.fake_pg", "meshwright.runtime.rank_program", "meshwright.runtime.recorder",
    "meshwright.runtime.proof_rank",
)  # fmt: skip
"""What ranks find imported; their own imports each cost all of them."""

_POLL_S = 0.005
_GRACE_S = 1.0
"""How long the other ranks get to fail by themselves after the first failure: their own errors tell more than a kill."""
_DUMP_S = 0.3
"""How long a rank gets to write its stacks before it is killed."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a rank ended. code: as os.waitstatus_to_exitcode (negative: a signal); ended_by_us: it was still alive then."""

    rank: int
    code: int
    when_s: float
    ended_by_us: bool


@dataclass(kw_only=True)
class _Running:
    job: Job
    pids: dict[int, int]
    exits: list[Exit] = field(default_factory=list)

    def reap(self, ended_by_us: bool = False) -> None:
        for rank, pid in list(self.pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.pids[rank]
                when_s = time.monotonic() - self.job.began_s
                self.exits.append(Exit(rank=rank, code=os.waitstatus_to_exitcode(status), when_s=when_s, ended_by_us=ended_by_us))
                _signal_group(pid, signal.SIGKILL)  # what the rank itself may have started

    def signal_all(self, number: int) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self, with_stacks: bool) -> None:
        """Let the ranks that are left write their stacks, then kill them and wait until they are gone."""
        from meshwright.runtime.rank_program import STACK_SIGNAL

        if with_stacks and self.pids:
            self.signal_all(STACK_SIGNAL)
            time.sleep(_DUMP_S)
        for pid in self.pids.values():
            _signal_group(pid, signal.SIGKILL)
        while self.pids:
            self.reap(ended_by_us=True)
            time.sleep(_POLL_S)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def serve(connection: Connection) -> None:
    """Run jobs, one after the other, until the pipe closes."""
    try:
        while True:
            job = connection.recv()
            connection.send(_run(job, connection))
    except (EOFError, OSError):
        return


def _run(job: Job, connection: Connection) -> list[Exit]:
    # Importing the function's module here gives it to all ranks at once; if it fails, the ranks will say why.
    with contextlib.suppress(BaseException):
        load_module(job)
    running = _Running(job=job, pids={})
    try:
        for rank in range(job.world_size):
            running.pids[rank] = _fork_rank(job, rank, connection)
        _wait(running, connection)
    finally:
        running.end(with_stacks=True)
    return running.exits


def _wait(running: _Running, connection: Connection) -> None:
    """Until all ranks have ended, or the time limit, or the grace after a first failure, or the caller is gone."""
    deadline = running.job.began_s + running.job.timeout_s
    while running.pids and time.monotonic() < deadline:
        running.reap()
        if any(exit_.code != 0 for exit_ in running.exits):
            deadline = min(deadline, running.job.began_s + next(e.when_s for e in running.exits if e.code != 0) + _GRACE_S)
        if connection.poll(_POLL_S):
            raise EOFError  # nothing is ever sent while a job runs: the pipe has closed


def _fork_rank(job: Job, rank: int, connection: Connection) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        return pid
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    _die_with(server)
    connection.close()
    from meshwright.runtime.rank_program import run_forked_rank

    run_forked_rank(job, rank)
    raise AssertionError("run_forked_rank returned")


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere the time limit of collectives ends it)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # <linux/prctl.h>
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main(descriptor: int) -> None:
    """Import what the ranks need, say so, and serve."""
    connection = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    try:
        for name in PRELOAD:
            importlib.import_module(name)
    except ImportError as error:
        connection.send(str(error))
        return
    gc.collect()
    gc.freeze()
    connection.send(None)
    serve(connection)
