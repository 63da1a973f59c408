"""What one rank does: join the process group, call the job's function, leave the result."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.runtime import job as jobs
from meshwright.runtime.job import Job

STACK_SIGNAL = signal.SIGUSR1
"""A rank that gets it writes the stacks of all its threads, whatever it is stuck in."""


def run_forked_rank(job: Job, rank: int) -> None:
    """The life of a process that the fork server has made; never returns."""
    code = 1
    try:
        _redirect_output(job.file(rank, "out"))
        # Unbuffered and kept open: written by a signal handler when the process is stuck or dies.
        stacks = os.open(job.file(rank, "stack"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        faulthandler.enable(file=stacks, all_threads=True)
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
        torch.set_num_threads(1)
        jobs.write_result(job, rank, _call_in_group(job, rank))
        code = 0
    except BaseException as error:  # whatever ends a rank is reported, KeyboardInterrupt and SystemExit included
        jobs.write_error(job, rank, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # no exit handlers: they belong to the server that was forked


def _call_in_group(job: Job, rank: int) -> Any:
    if not job.join:
        return jobs.call(job)
    join = f"file://{Path(job.folder) / 'rendezvous'}"
    timeout = timedelta(seconds=job.timeout_s)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a local job never leaves the machine
    dist.init_process_group("gloo", init_method=join, rank=rank, world_size=job.world_size, timeout=timeout)
    result = jobs.call(job)
    dist.destroy_process_group()
    return result


def _redirect_output(path: Path) -> None:
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def run_torchrun_rank(function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float, backend: str = "gloo") -> list[Any]:
    """Call ``function(*args)`` in this process, one rank of a job that torchrun started; every rank's result, in order.

    torchrun's own report names the rank that failed first: its error file is written here. A rank that is still busy
    after ``timeout_s`` prints the stacks of all its threads and exits.
    """
    from torch.distributed.elastic.multiprocessing.errors import record

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    faulthandler.enable()
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    results: list[Any] = []

    @record
    def run() -> None:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        results.extend([None] * dist.get_world_size())
        dist.all_gather_object(results, function(*args))
        dist.destroy_process_group()

    run()
    faulthandler.cancel_dump_traceback_later()
    return results
