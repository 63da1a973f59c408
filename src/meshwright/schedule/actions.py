"""What a pipeline schedule is: for each pipeline rank, the list of its computations in order.

Letters: p ranks, v chunks of layers per rank, m micro-batches. A *chunk* is a piece of the model (a virtual stage); chunks are
numbered in model order. The lists hold computations only; communication.py derives the sends and receives from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from meshwright.schedule.order_graph import OrderGraph

__all__ = ["COMPUTE_KINDS", "Action", "Kind", "Schedule", "parse_action", "print_action"]


class Kind(IntEnum):
    """What an action does. ``BACKWARD`` is ``BACKWARD_INPUT`` and ``BACKWARD_WEIGHT`` in one go."""

    FORWARD = 0
    BACKWARD = 1
    BACKWARD_INPUT = 2
    BACKWARD_WEIGHT = 3
    SEND_FORWARD = 4
    RECV_FORWARD = 5
    SEND_BACKWARD = 6
    RECV_BACKWARD = 7


COMPUTE_KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)

KIND_WORDS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.SEND_FORWARD: "SEND_F",
    Kind.RECV_FORWARD: "RECV_F",
    Kind.SEND_BACKWARD: "SEND_B",
    Kind.RECV_BACKWARD: "RECV_B",
}
"""torch.distributed.pipelining's words for the kinds (its CSV files use them)."""

_KINDS = {word: kind for kind, word in KIND_WORDS.items()}
_ACTION = re.compile(r"([0-9]{1,9})(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)([0-9]{1,9})")


class Action(NamedTuple):
    """One computation or message of one micro-batch on one chunk.

    Attributes:
        kind: what is done. A send or receive carries the chunk of the rank that executes it: ``SEND_FORWARD`` of chunk c
            goes to the rank of chunk c + 1, ``RECV_FORWARD`` of chunk c comes from the rank of chunk c - 1.
        chunk: the chunk's number in model order.
        micro_batch: from 0.
        pairs_with_next: this forward and the backward behind it run as one computation that hides the messages inside
            the layers of the one behind the arithmetic of the other (DualPipe).
    """

    kind: Kind
    chunk: int
    micro_batch: int
    pairs_with_next: bool = False

    def __str__(self) -> str:
        return print_action(self)


def print_action(action: Action) -> str:
    """``2F0``: chunk 2, forward, micro-batch 0; torch's notation."""
    return f"{action.chunk}{KIND_WORDS[action.kind]}{action.micro_batch}"


def parse_action(text: str) -> Action:
    """The reverse of ``print_action``. Raises ValueError on anything else."""
    match = _ACTION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an action such as 2F0")
    return Action(_KINDS[match[2]], int(match[1]), int(match[3]))


@dataclass(frozen=True)
class Schedule:
    """The order in which every pipeline rank computes.

    Attributes:
        name: the schedule's word in a layout (``1f1b``), or a file's name.
        num_ranks: p.
        num_micro_batches: m.
        rank_of_chunk: for each chunk, the pipeline rank that holds it. With two copies of the model (``copies`` = 2) the
            second copy's chunks follow the first's: chunk ``num_stages + s`` is stage s again.
        actions: for each rank, what it does in order.
        copies: how many copies of the model's parameters the ranks hold together: 2 for dualpipe, else 1. Micro-batch k
            goes through copy ``k // (m / copies)``.
    """

    name: str
    num_ranks: int
    num_micro_batches: int
    rank_of_chunk: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]
    copies: int = 1

    @cached_property
    def order_graph(self) -> OrderGraph:
        """Who waits for whom, worked out once. Raises InputError: the order is impossible; names rank, step and action."""
        from meshwright.schedule.order_graph import OrderGraph

        return OrderGraph(self)

    @property
    def num_chunks(self) -> int:
        """Chunks of all copies."""
        return len(self.rank_of_chunk)

    @cached_property
    def num_stages(self) -> int:
        """Pieces that the model is cut into."""
        return len(self.rank_of_chunk) // self.copies

    @property
    def chunks_per_rank(self) -> int:
        return len(self.rank_of_chunk) // self.num_ranks

    def stage(self, chunk: int) -> int:
        """The piece of the model that this chunk is (a copy of)."""
        return chunk % self.num_stages

    def is_first(self, chunk: int) -> bool:
        """Whether this chunk reads the micro-batch itself rather than another chunk's output."""
        return chunk % self.num_stages == 0

    def is_last(self, chunk: int) -> bool:
        """Whether this chunk ends in the loss."""
        return (chunk + 1) % self.num_stages == 0

    def micro_batches_of(self, chunk: int) -> range:
        """The micro-batches that pass through this chunk."""
        share = self.num_micro_batches // self.copies
        copy = chunk // self.num_stages
        return range(copy * share, (copy + 1) * share)

    def __iter__(self) -> Iterator[tuple[Action, ...]]:
        return iter(self.actions)
