"""Everyone talks to everyone: right where a switch joins all ranks, and for small messages.

all_to_all has no better way in bytes. all_gather, reduce_scatter and all_reduce in one or two steps are what inference
engines run inside an NVLink node ("one-shot" and "two-shot" all-reduce, e.g. vLLM's and TensorRT-LLM's custom kernels).
Pairwise exchange: Thakur, Rabenseifner and Gropp (2005), section 4.4; their p = our ``ranks`` n.
"""

from __future__ import annotations

import numpy as np

from meshwright.arithmetic import Num, smaller
from meshwright.collectives.algorithms.steplist import Part, StepList, from_parts, mirrored, one_after_the_other
from meshwright.collectives.volume import direct_all_to_all_wire_bytes


def all_to_all(ranks: int) -> StepList:
    """All n - 1 messages of all ranks at once."""
    return from_parts("all_to_all", ranks, ranks * ranks, [_exchanges(ranks)] if ranks > 1 else [])


def pairwise_all_to_all(ranks: int) -> StepList:
    """In step s every rank sends to the rank s on and receives from the rank s back: one peer at a time."""
    return from_parts("all_to_all", ranks, ranks * ranks, [[part] for part in _exchanges(ranks)])


def _exchanges(ranks: int) -> list[Part]:
    rank = np.arange(ranks)
    return [(rank, (rank + s) % ranks, rank * ranks + (rank + s) % ranks, False) for s in range(1, ranks)]


def all_gather(ranks: int) -> StepList:
    """Every rank sends its chunk to all others at once."""
    rank = np.arange(ranks)
    parts: list[Part] = [(rank, (rank + s) % ranks, rank, False) for s in range(1, ranks)]
    return from_parts("all_gather", ranks, ranks, [parts] if ranks > 1 else [])


def reduce_scatter(ranks: int) -> StepList:
    """Every rank sends every other rank the chunk that the other owns, at once."""
    return mirrored(all_gather(ranks))


def two_shot_all_reduce(ranks: int) -> StepList:
    """reduce_scatter, then all_gather: two steps."""
    return one_after_the_other("all_reduce", reduce_scatter(ranks), all_gather(ranks))


def one_shot_all_reduce(ranks: int) -> StepList:
    """Every rank sends its whole tensor to all others and adds up what it gets: one step."""
    rank = np.arange(ranks)
    parts: list[Part] = [(rank, (rank + s) % ranks, 0, True) for s in range(1, ranks)]
    return from_parts("all_reduce", ranks, 1, [parts] if ranks > 1 else [])


def one_step(ranks: Num) -> Num:
    """1; 0 for n = 1."""
    return smaller(ranks - 1, 1)


def two_steps(ranks: Num) -> Num:
    """2; 0 for n = 1."""
    return 2 * one_step(ranks)


def pairwise_steps(ranks: Num) -> Num:
    """n - 1."""
    return ranks - 1


exchange_wire_bytes = direct_all_to_all_wire_bytes
"""Bytes each rank sends in an all_to_all, all_gather or reduce_scatter: all but its own nth part."""


def two_shot_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes each rank sends: 2 (n - 1)/n M."""
    return 2 * exchange_wire_bytes(payload_bytes, ranks)


def one_shot_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """Bytes each rank sends: (n - 1) M, n/2 times a ring's."""
    return (ranks - 1) * payload_bytes
