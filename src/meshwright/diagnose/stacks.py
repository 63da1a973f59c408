"""Python stacks of ranks, as py-spy shows them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshwright.diagnose.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The main thread of one process.

    Attributes:
        rank: None where neither the file's name nor the command line tells it.
        source: name of the file. process: its command line.
        frames: ``function (file.py:12)``, innermost first. state: "idle", "active", "active+gil".
        others: the frames of its other threads that hold the GIL.
    """

    rank: int | None
    source: str
    process: str
    frames: tuple[str, ...]
    state: str = ""
    others: tuple[str, ...] = ()

    @property
    def who(self) -> str:
        return self.source if self.rank is None else f"rank {self.rank}"

    @property
    def own_frame(self) -> str:
        """The innermost frame that is not torch's or Python's own, the innermost of all where there is none."""
        return next((frame for frame in self.frames if not INNER.search(frame)), self.frames[0] if self.frames else "nowhere")

    @property
    def in_collective(self) -> bool:
        return any(WAITING.search(frame) for frame in self.frames)


INNER = re.compile(r"\((?:torch/|.*(?:site|dist)-packages/|threading\.py|queue\.py|selectors\.py|socket\.py|contextlib\.py|<)")
WAITING = re.compile(
    r"distributed_c10d\.py|c10d_logger\.py|_functional_collectives\.py|\b(?:all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|barrier"
    r"|batch_isend_irecv|wait_tensor|synchronize|item)\b"
)
"""Where a rank waits for the others: in torch's collectives, or where the host waits for the device that does."""


def alike(stacks: Iterable[Stack]) -> list[list[Stack]]:
    """Stacks with the same frames together, the largest set first."""
    sets: Mapping[tuple[str, ...], list[Stack]] = defaultdict(list)
    for stack in stacks:
        sets[stack.frames].append(stack)
    return sorted(sets.values(), key=lambda same: (-len(same), same[0].who))


def stack_of(evidence: Evidence, rank: int) -> str:
    """A sentence on where a rank's Python stands; "" where no py-spy dump tells."""
    for stack in evidence.of(Stack):
        if stack.rank == rank:
            holding = f", and a thread holds the GIL in {stack.others[0]}" if stack.others else ""
            return f"rank {rank}: its main thread ({stack.state}) is in {stack.own_frame}{holding}"
    return ""
