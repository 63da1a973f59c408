"""The ranks of one host, for test_two_hosts.py: runs each collective and prints the bytes that left by the interface.

Started once per network namespace: ``python host_program.py FOLDER HOST INTERFACE``. FOLDER/jobs.json holds the ranks per
host, the elements per chunk and the step lists; the ranks of all hosts meet through FOLDER/rendezvous.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.runtime.collectives import Steps, run_steps

HEADER_BYTES = 14 + 20 + 32
"""Of a packet, as the interface counts it: Ethernet, IPv4, TCP with time stamps (RFC 7323), which Linux sends by default."""
REPEATS = 3


def interface_bytes(interface: str) -> int:
    """Bytes sent by an interface of this network namespace so far, without the headers of its packets."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            sent_bytes, packets = map(int, counters.split()[8:10])
            return sent_bytes - packets * HEADER_BYTES
    raise LookupError(interface)


def run_rank(folder: Path, host: int, local: int, interface: str) -> list[int]:
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
        counted = []
        for _ in range(REPEATS):
            dist.barrier()
            before = interface_bytes(interface)
            dist.barrier()
            dist.all_reduce(buffer) if entry["name"] == "torch" else run_steps(buffer, steps.rows)
            dist.barrier()
            counted.append(interface_bytes(interface) - before)
        # A busy machine sends some segments twice, which can only add to the count: the smallest has least of it.
        sent.append(min(counted))
    dist.destroy_process_group()
    return sent


def main(folder: Path, host: int, interface: str) -> None:
    per_host = json.loads((folder / "jobs.json").read_text())["ranks_per_host"]
    children = []
    for local in range(per_host):
        # forked before torch has computed anything: no thread pools yet
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sent = run_rank(folder, host, local, interface)
                (folder / f"host_{host}_{local}.json").write_text(json.dumps(sent))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
