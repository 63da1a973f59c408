"""The same program under torchrun on two hosts of two ranks each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.test_launch import PROGRAM

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def start(namespace: str, interface: str, node: int, program: Path) -> subprocess.Popen[str]:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=interface)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2"]
    command = ["ip", "netns", "exec", namespace, *torchrun, "--master-addr", "10.213.7.1", "--master-port", "29511", str(program)]
    return subprocess.Popen(command, cwd=program.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_hosts_of_two_ranks(hosts: list[tuple[str, str]], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("run_ranks(work, 2,", "run_ranks(work, 4,"))
    running = [start(*host, node, program) for node, host in enumerate(hosts)]
    try:
        done = [process.communicate(timeout=110) for process in running]
    finally:
        for process in running:
            process.kill()
    for output, errors in done:
        assert output == "answers [84, 84, 84, 84]\n" * 2, errors
