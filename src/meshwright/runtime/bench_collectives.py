"""Measures the collectives of the machines at hand, for ``meshwright.calibrate``: one JSON line per point.

    torchrun --nnodes 2 --nproc-per-node 8 -m meshwright bench-collectives -o bench.jsonl

Every op runs over all ranks, and over the ranks of each node where there are several nodes (all nodes at once, as in a
training step), for payloads from 1 KiB to 512 MiB. A point is the fastest of several rounds, of the slowest rank in it;
rounds go over all sizes in turn, so that a disturbance does not hit one size only. NCCL where there are GPUs, else gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

SCHEMA = "meshwright-bench-collectives/1"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = tuple(1 << k for k in range(10, 30))
ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Measured:
    """Seconds of one op over ``ranks`` ranks on ``nodes`` nodes; ``payload_bytes`` is the full tensor."""

    op: str
    ranks: int
    nodes: int
    payload_bytes: int
    time_s: float


def measure(sizes: Sequence[int] = SIZES, rounds: int = 10, nodes: int = 1, group: dist.ProcessGroup | None = None) -> list[Measured]:
    """Measure every op and size over a group; the same answer on each of its ranks.

    Args:
        sizes: payloads in bytes; each is rounded up to a whole number of elements per rank.
        rounds: counted rounds, after one that is not.
        nodes: how many nodes the group spans, for the record.
    """
    ranks = dist.get_world_size(group)
    calls = [(op, -(-size // (ELEMENT_BYTES * ranks)) * ELEMENT_BYTES * ranks) for size in sizes for op in OPS]
    fastest = torch.full((len(calls),), float("inf"), dtype=torch.float64, device=_device())
    for index in range(rounds + 1):
        times = torch.tensor([_time(op, size, ranks, group) for op, size in calls], dtype=torch.float64, device=_device())
        dist.all_reduce(times, dist.ReduceOp.MAX, group=group)
        if index:
            fastest = torch.minimum(fastest, times)
    return [Measured(op, ranks, nodes, size, time_s) for (op, size), time_s in zip(calls, fastest.tolist(), strict=True)]


def _time(op: str, payload_bytes: int, ranks: int, group: dist.ProcessGroup | None) -> float:
    full = torch.ones(payload_bytes // ELEMENT_BYTES, dtype=torch.float32, device=_device())
    received, part = torch.empty_like(full), full[: len(full) // ranks].clone()
    run = _call(op, full, received, part, group)
    dist.barrier(group)
    _finish()
    began = time.perf_counter()
    run()
    _finish()
    return time.perf_counter() - began


def _call(op: str, full: torch.Tensor, received: torch.Tensor, part: torch.Tensor, group: dist.ProcessGroup | None) -> Callable[[], object]:
    # torch 2.13 renamed the two and warns of the old names; older versions only have those.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: gather(received, part, group=group),
        "reduce_scatter": lambda: scatter(part, full, group=group),
        "all_to_all": lambda: dist.all_to_all_single(received, full, group=group),
    }[op]


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _finish() -> None:
    if dist.get_backend() == "nccl":
        torch.cuda.synchronize()


def measure_all(sizes: Sequence[int], rounds: int) -> list[Measured]:
    """All ranks, then those of each node (the first node's answer); on every rank of the world."""
    world = dist.get_world_size()
    hosts: list[str] = [""] * world
    dist.all_gather_object(hosts, socket.gethostname())
    names = list(dict.fromkeys(hosts))
    found = measure(sizes, rounds, nodes=len(names))
    if 1 < len(names) < world:
        groups = [dist.new_group([rank for rank in range(world) if hosts[rank] == name]) for name in names]
        inside = measure(sizes, rounds, group=groups[names.index(hosts[dist.get_rank()])])
        found = inside + found
    return found


def lines(found: Sequence[Measured]) -> str:
    """The text of a file: a header, then a line per point."""
    device = torch.cuda.get_device_name() if dist.get_backend() == "nccl" else "cpu"
    header = {"schema": SCHEMA, "backend": dist.get_backend(), "device": device, "torch": torch.__version__}
    return "".join(json.dumps(entry) + "\n" for entry in [header, *(asdict(one) for one in found)])


def main() -> None:
    """One rank of a torchrun job; rank 0 writes the file."""
    parser = argparse.ArgumentParser(
        prog="meshwright.runtime.bench_collectives", description="Measure collectives for meshwright calibrate."
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write, one JSON line per point")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="largest payload in bytes")
    parser.add_argument("--json", action="store_true", help="rank 0 prints the file's name and the number of points")
    options = parser.parse_args()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    found = measure_all([size for size in SIZES if size <= options.largest], options.rounds)
    if dist.get_rank() == 0:
        part = options.output.with_name(options.output.name + ".part")
        part.write_text(lines(found), encoding="utf-8")
        part.replace(options.output)
        told = {"file": str(options.output), "points": len(found)}
        sys.stdout.write((json.dumps(told) if options.json else f"wrote {told['file']}: {told['points']} points") + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
