"""A collective written out: who sends which chunk to whom, in which step.

    op       all_reduce | all_gather | reduce_scatter | all_to_all
    rank     0 .. ranks-1 inside the group
    chunk    a piece of the payload; the same number means the same piece on every rank
    step     transfers of one step happen at once, all reading what was there before the step
    reduce   the receiver adds what arrives (True) or overwrites its piece with it (False)

Chunks of all_gather and reduce_scatter are owned: chunk c belongs to rank ``c // (chunks / ranks)``.
Chunks of all_to_all are pairs: chunk ``source * ranks + destination``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Part = tuple[ArrayLike, ArrayLike, ArrayLike, bool]
"""Transfers of one step that broadcast against each other: (senders, receivers, chunks, reduce)."""

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, eq=False)
class StepList:
    """One collective as a table of transfers, a row each, sorted by step.

    Attributes:
        ranks: size of the group; chunks: how many pieces the buffer is cut into (``ranks`` x ``ranks`` for all_to_all).
        step, sender, receiver, chunk: integer columns; reduce: boolean column.
    """

    op: str
    ranks: int
    chunks: int
    step: Ints
    sender: Ints
    receiver: Ints
    chunk: Ints
    reduce: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def num_steps(self) -> int:
        """Steps that follow one another; 0 for a group of one."""
        return int(self.step[-1]) + 1 if len(self) else 0

    def chunk_bytes(self, payload_bytes: float) -> float:
        """Bytes of one chunk; ``payload_bytes`` as in the ledger (all_to_all: what one rank passes in)."""
        pieces = self.chunks / self.ranks if self.op == "all_to_all" else self.chunks
        return payload_bytes / pieces

    def sent_chunks(self) -> Ints:
        """Chunks that each rank sends in all: int[ranks]."""
        return np.bincount(self.sender, minlength=self.ranks).astype(np.int64)

    def sent_bytes(self, payload_bytes: float) -> NDArray[np.float64]:
        """Bytes that each rank sends in all, counted from the table: float[ranks]."""
        return self.sent_chunks().astype(np.float64) * self.chunk_bytes(payload_bytes)

    def sent_across(self, ranks_per_node: int) -> Ints:
        """Chunks that leave each node when ranks fill nodes in order: int[nodes]."""
        out = self.sender // ranks_per_node
        away = out != self.receiver // ranks_per_node
        return np.bincount(out[away], minlength=-(-self.ranks // ranks_per_node)).astype(np.int64)

    def busiest_chunks(self) -> Ints:
        """For each step, the most chunks that any one rank sends or receives in it: int[num_steps].

        Their sum is what a full-duplex port per rank must carry one after the other.
        """
        busiest = np.zeros(self.num_steps, dtype=np.int64)
        for side in (self.sender, self.receiver):
            counts = np.bincount(self.step * self.ranks + side, minlength=self.num_steps * self.ranks)
            busiest = np.maximum(busiest, counts.reshape(self.num_steps, self.ranks).max(axis=1, initial=0))
        return busiest

    def rows(self) -> list[tuple[int, int, int, int, bool]]:
        """The table as plain rows (step, sender, receiver, chunk, reduce), for whoever carries it out."""
        columns = (self.step, self.sender, self.receiver, self.chunk, self.reduce)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def owner(self) -> Ints:
        """The rank that each chunk of an all_gather or reduce_scatter belongs to: int[chunks]."""
        return np.arange(self.chunks) // (self.chunks // self.ranks)


def from_parts(op: str, ranks: int, chunks: int, steps: Sequence[Sequence[Part]]) -> StepList:
    """Build the table from a list of steps, each a list of parts whose columns broadcast against each other."""
    if op not in OPS:
        raise ValueError(f"op = {op!r} is not one of {', '.join(OPS)}")
    columns: list[list[Ints]] = [[], [], [], []]
    reduce: list[NDArray[np.bool_]] = []
    for index, parts in enumerate(steps):
        for senders, receivers, pieces, adds in parts:
            arrays = np.broadcast_arrays(index, senders, receivers, pieces)
            for column, array in zip(columns, arrays, strict=True):
                column.append(array.reshape(-1).astype(np.int64))
            reduce.append(np.full(arrays[0].size, adds))
    empty = np.zeros(0, dtype=np.int64)
    step, sender, receiver, chunk = (np.concatenate([empty, *column]) for column in columns)
    return StepList(op, ranks, chunks, step, sender, receiver, chunk, np.concatenate([empty.astype(bool), *reduce]))


def mirrored(steps: StepList) -> StepList:
    """The same transfers backwards: an all_gather becomes a reduce_scatter and the other way round.

    Where a chunk spread from its owner along a tree, its partial sums now come together along the same tree.
    Bytes and steps stay; what a rank sent it now receives.
    """
    op = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}[steps.op]
    step = steps.num_steps - 1 - steps.step[::-1]
    reduce = np.full(len(steps), op == "reduce_scatter")
    return StepList(op, steps.ranks, steps.chunks, step, steps.receiver[::-1], steps.sender[::-1], steps.chunk[::-1], reduce)


def one_after_the_other(op: str, *lists: StepList) -> StepList:
    """All steps of the first list, then all of the next: reduce_scatter then all_gather is an all_reduce."""
    offsets = np.cumsum([0, *(steps.num_steps for steps in lists)])
    return StepList(
        op,
        lists[0].ranks,
        lists[0].chunks,
        np.concatenate([steps.step + offset for steps, offset in zip(lists, offsets, strict=False)]),
        np.concatenate([steps.sender for steps in lists]),
        np.concatenate([steps.receiver for steps in lists]),
        np.concatenate([steps.chunk for steps in lists]),
        np.concatenate([steps.reduce for steps in lists]),
    )


def placed(steps: StepList, ranks: int, chunks: int, members: ArrayLike, pieces: ArrayLike) -> StepList:
    """Run one list in many groups at once, inside a larger group.

    Args:
        steps: the list of one group of n ranks and c chunks.
        ranks, chunks: of the larger group.
        members: int[groups, n], the rank in the larger group of each member.
        pieces: int[groups, c, k], the k chunks of the larger group that stand for each chunk.
    """
    member, piece = np.asarray(members), np.asarray(pieces)
    shape = (len(steps), member.shape[0], piece.shape[2])
    sender = np.broadcast_to(member[:, steps.sender].T[:, :, None], shape)
    receiver = np.broadcast_to(member[:, steps.receiver].T[:, :, None], shape)
    chunk = piece[:, steps.chunk].transpose(1, 0, 2)
    step = np.broadcast_to(steps.step[:, None, None], shape)
    reduce = np.broadcast_to(steps.reduce[:, None, None], shape)
    flat = [np.ascontiguousarray(column).reshape(-1) for column in (step, sender, receiver, chunk, reduce)]
    return StepList(steps.op, ranks, chunks, flat[0], flat[1], flat[2], flat[3], flat[4])
