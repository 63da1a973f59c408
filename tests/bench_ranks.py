"""What each rank of the bench test runs; a module of its own, since it imports torch."""

import socket

import torch.distributed as dist

from meshwright.runtime.bench_collectives import lines, measure_all


def bench_text(sizes: list[int]) -> str:
    return lines(measure_all(sizes, rounds=2))


def bench_two_hosts(sizes: list[int]) -> str:
    """Ranks 0 and 1 believe to be on one host, 2 and 3 on another."""
    socket.gethostname = lambda: f"host{dist.get_rank() // 2}"
    return bench_text(sizes)
