"""Two network namespaces as two hosts: what crosses between them, by the kernel's count, is what the formulas say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.collectives.algorithms import algorithms, hierarchical, ring

pytestmark = pytest.mark.dist

RANKS, LOCAL = 4, 2
PAYLOAD = 12 << 20
"""Of every rank; the count also sees the barriers around each collective, less than 1e-3 of it."""
CHOSEN = [
    ("all_reduce", "torch"),
    ("all_reduce", "ring"),
    ("all_reduce", "hierarchical"),
    ("all_to_all", "pairwise"),
    ("all_to_all", "rail"),
    ("all_to_all", "hierarchical"),
]


def build(op: str, name: str):
    """``torch`` is gloo's own all_reduce, a ring over the ranks in order."""
    wanted = "ring" if name == "torch" else name
    return next(a for a in algorithms(op, RANKS, LOCAL) if a.name == wanted).build(RANKS)


@pytest.fixture(scope="module")
def sent(hosts, tmp_path_factory) -> dict[tuple[str, str], list[int]]:
    """Bytes that each host sent to the other in each collective, by its connections."""
    folder: Path = tmp_path_factory.mktemp("two_hosts")
    lists = {(op, name): build(op, name) for op, name in CHOSEN}
    job = {
        "ranks_per_host": LOCAL,
        "chunk_bytes": {},
        "collectives": [{"op": op, "name": name, "chunks": s.chunks, "rows": s.rows()} for (op, name), s in lists.items()],
    }
    assert all(s.chunk_bytes(PAYLOAD) == PAYLOAD // RANKS for s in lists.values())
    job["chunk_bytes"] = dict.fromkeys(("all_reduce", "all_to_all"), PAYLOAD // RANKS)
    (folder / "jobs.json").write_text(json.dumps(job))
    program = Path(__file__).with_name("host_program.py")
    running = []
    for host, (namespace, interface) in enumerate(hosts):
        environment = dict(
            os.environ, GLOO_SOCKET_IFNAME=interface, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, sys.path))
        )
        command = ["ip", "netns", "exec", namespace, sys.executable, str(program), str(folder), str(host)]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=90)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], errors
    counts = [[json.loads((folder / f"host_{host}_{local}.json").read_text()) for local in range(LOCAL)] for host in (0, 1)]
    return {key: [sum(of_rank[i] for of_rank in of_host) for of_host in counts] for i, key in enumerate(CHOSEN)}


def across(op: str, name: str) -> float:
    """The formula: bytes that one host of LOCAL ranks sends to the other."""
    if op == "all_to_all":
        return LOCAL * hierarchical.rail_across_bytes(PAYLOAD, RANKS, LOCAL)
    if name == "hierarchical":
        return LOCAL * hierarchical.all_reduce_across_bytes(PAYLOAD, RANKS, LOCAL)
    return ring.all_reduce_wire_bytes(PAYLOAD, RANKS)


@pytest.mark.parametrize(("op", "name"), CHOSEN)
def test_bytes_between_hosts_by_the_kernel_equal_the_formula(sent, op, name):
    for host in (0, 1):
        assert sent[op, name][host] == pytest.approx(across(op, name), rel=1e-3)
    if name != "torch":
        steps = build(op, name)
        assert list(steps.sent_across(LOCAL) * steps.chunk_bytes(PAYLOAD)) == [across(op, name)] * 2


def test_hierarchical_all_reduce_sends_two_thirds_of_a_flat_ring_between_two_hosts_of_two(sent):
    flat, two_levels = (sum(sent["all_reduce", name]) for name in ("ring", "hierarchical"))
    assert two_levels / flat == pytest.approx(2 / 3, rel=1e-3)
