"""The ranks of one host, for test_two_hosts.py: runs each collective and writes down the bytes that its connections sent.

Started once per network namespace: ``python host_program.py FOLDER HOST``. FOLDER/jobs.json holds the ranks per
host, the elements per chunk and the step lists; the ranks of all hosts meet through FOLDER/rendezvous.
"""

import contextlib
import json
import os
import socket
import struct
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.runtime.collectives import Steps, run_steps

BYTES_SENT, BYTES_SENT_AGAIN = 200, 208
"""Places of tcpi_bytes_sent and tcpi_bytes_retrans, 64 bits each, in the kernel's struct tcp_info (include/uapi/linux/tcp.h)."""


def bytes_to_other_host(host: int) -> int:
    """Payload that this process's connections have sent to the other host so far, by the kernel's count (TCP_INFO).

    Without headers and without what a busy machine sends twice; the counters of the interface would see both.
    """
    other = f"10.213.7.{2 - host}"  # host h has number h + 1: tests/runtime/conftest.py
    total = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:  # no socket
            continue
        with contextlib.suppress(OSError):  # a socket without a peer: it listens
            if other in connection.getpeername()[0]:
                information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent, again = (struct.unpack_from("Q", information, at)[0] for at in (BYTES_SENT, BYTES_SENT_AGAIN))
                total += sent - again
        connection.detach()  # it is not ours to close
    return total


def run_rank(folder: Path, host: int, local: int) -> list[int]:
    job = json.loads((folder / "jobs.json").read_text())
    per_host = job["ranks_per_host"]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=host * per_host + local,
        world_size=2 * per_host,
        timeout=timedelta(seconds=60),
    )
    sent = []
    for entry in job["collectives"]:
        buffer = torch.ones(entry["chunks"], job["chunk_bytes"][entry["op"]] // 4, dtype=torch.float32)
        steps = Steps(entry["op"], entry["chunks"], [tuple(row) for row in entry["rows"]])
        dist.barrier()
        before = bytes_to_other_host(host)
        dist.barrier()
        dist.all_reduce(buffer) if entry["name"] == "torch" else run_steps(buffer, steps.rows)
        dist.barrier()
        sent.append(bytes_to_other_host(host) - before)
    dist.destroy_process_group()
    return sent


def main(folder: Path, host: int) -> None:
    per_host = json.loads((folder / "jobs.json").read_text())["ranks_per_host"]
    children = []
    for local in range(per_host):
        # forked before torch has computed anything: no thread pools yet
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sent = run_rank(folder, host, local)
                (folder / f"host_{host}_{local}.json").write_text(json.dumps(sent))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
