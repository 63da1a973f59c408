"""Carries out a collective step by step over point-to-point messages, and compares it with torch's own.

The steps come in as plain rows (step, sender, receiver, chunk, reduce), sorted by step; who wrote them down is unknown
here. A rank's buffer is [chunks, k]: row c is its piece of chunk c.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import torch
import torch.distributed as dist

Row = tuple[int, int, int, int, bool]

_MARKER = 10**15
"""Stands where nothing has arrived yet, far above all input, so that forgetting a place shows."""


@dataclass(frozen=True)
class Steps:
    """One algorithm as plain data: which collective, into how many chunks the buffer is cut, who sends what when."""

    op: str
    chunks: int
    rows: Sequence[Row]


@dataclass(frozen=True)
class Execution:
    """What one rank saw.

    Attributes:
        sent_bytes: counted from the messages it sent; steps: in which it sent or received.
        max_error: largest difference from torch's collective; allowed_error: what another order of adding may cause there.
    """

    sent_bytes: int
    steps: int
    max_error: float
    allowed_error: float

    @property
    def equal(self) -> bool:
        return self.max_error <= self.allowed_error


def run_steps(buffer: torch.Tensor, rows: Sequence[Row], group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """Carry out ``rows`` on this rank's buffer [chunks, k], in place.

    Returns (bytes sent, steps taken part in). In each step all of a rank's chunks for one peer travel as one message.
    """
    rank = dist.get_rank(group)
    sent_bytes = steps = 0
    for _, step in groupby(rows, key=itemgetter(0)):
        mine = [row for row in step if rank in (row[1], row[2])]
        if mine:
            sent_bytes += _run_step(buffer, mine, rank, group)
            steps += 1
    return sent_bytes, steps


def _run_step(buffer: torch.Tensor, rows: Sequence[Row], rank: int, group: dist.ProcessGroup | None) -> int:
    outgoing: dict[int, list[int]] = defaultdict(list)
    incoming: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for _, sender, receiver, chunk, reduce in rows:
        if sender == rank:
            outgoing[receiver].append(chunk)
        if receiver == rank:
            incoming[sender].append((chunk, reduce))
    # Indexing copies: what is sent is the state before the step, whatever arrives meanwhile.
    messages = {peer: buffer[chunks] for peer, chunks in outgoing.items()}
    arrivals = {peer: buffer.new_empty((len(chunks), *buffer.shape[1:])) for peer, chunks in incoming.items()}
    operations = [dist.P2POp(dist.irecv, message, _global(peer, group), group) for peer, message in arrivals.items()]
    operations += [dist.P2POp(dist.isend, message, _global(peer, group), group) for peer, message in messages.items()]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for peer, chunks in incoming.items():
        for piece, (chunk, reduce) in zip(arrivals[peer], chunks, strict=True):
            buffer[chunk] = buffer[chunk] + piece if reduce else piece
    return sum(message.numel() * message.element_size() for message in messages.values())


def _global(peer: int, group: dist.ProcessGroup | None) -> int:
    return peer if group is None else dist.get_global_rank(group, peer)


def execute(steps: Steps, chunk_elements: int, dtype: torch.dtype, seed: int) -> Execution:
    """Carry out ``steps`` and torch's own collective on the same random input, different on each rank, and compare."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    source = torch.Generator().manual_seed(seed * ranks + rank)
    own_chunks = {"all_gather": steps.chunks // ranks, "all_to_all": ranks}.get(steps.op, steps.chunks)
    mine = _random((own_chunks, chunk_elements), dtype, source)
    buffer, kept = _starting_buffer(steps, mine, rank, ranks)
    sent_bytes, taken_part = run_steps(buffer, steps.rows)
    expected, magnitude = _by_torch(steps.op, mine, ranks)
    error = float((buffer[kept] - expected).abs().max()) if expected.numel() else 0.0
    # Each of two sums of n terms is off by at most (n - 1) eps sum|x| (Higham, Accuracy and Stability, section 4.2).
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return Execution(sent_bytes, taken_part, error, 2 * (ranks - 1) * eps * magnitude)


def _random(shape: tuple[int, int], dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, generator=source)
    return torch.randint(-(10**6), 10**6, shape, dtype=dtype, generator=source)


def _starting_buffer(steps: Steps, mine: torch.Tensor, rank: int, ranks: int) -> tuple[torch.Tensor, slice]:
    """The buffer before the first step, and the rows of it that the collective defines at the end."""
    own = slice(rank * (steps.chunks // ranks), (rank + 1) * (steps.chunks // ranks))
    if steps.op == "all_reduce":
        return mine.clone(), slice(None)
    if steps.op == "reduce_scatter":
        return mine.clone(), own
    buffer = torch.full((steps.chunks, mine.shape[1]), _MARKER, dtype=mine.dtype)
    buffer[own] = mine
    return buffer, slice(None) if steps.op == "all_gather" else slice(rank, None, ranks)


def _by_torch(op: str, mine: torch.Tensor, ranks: int) -> tuple[torch.Tensor, float]:
    """What torch's collective gives this rank, and the largest sum of absolute inputs (0 where nothing is added)."""
    if op == "all_gather":
        parts = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(parts, mine)
        return torch.cat(parts), 0.0
    if op == "all_to_all":
        blocks = torch.empty_like(mine)
        dist.all_to_all_single(blocks, mine)
        return blocks, 0.0
    magnitude = mine.abs()
    dist.all_reduce(magnitude)
    if op == "all_reduce":
        total = mine.clone()
        dist.all_reduce(total)
        return total, float(magnitude.max())
    part = torch.empty_like(mine[: len(mine) // ranks])
    dist.reduce_scatter(part, [piece.contiguous() for piece in mine.chunk(ranks)])
    return part, float(magnitude.max())
