"""A rank's order in the making, for the schedules with two chunks per rank: steps are repeated, micro-batches count up."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from meshwright.schedule.actions import Action, Kind

__all__ = ["Order", "Side"]


@dataclass
class Side:
    """One of a rank's chunks, and how far each kind of computation has come on it."""

    chunk: int
    first_micro_batch: int = 0
    forwards: int = 0
    backwards: int = 0

    def forward(self) -> Action:
        self.forwards += 1
        return Action(Kind.FORWARD, self.chunk, self.first_micro_batch + self.forwards - 1)

    def backward(self, kind: Kind) -> Action:
        """The next whole backward, or the next input half; both count as one backward."""
        self.backwards += 1
        return Action(kind, self.chunk, self.first_micro_batch + self.backwards - 1)


@dataclass
class Order:
    """The actions so far, and the weight halves that still wait, oldest first."""

    actions: list[Action] = field(default_factory=list)
    waiting: deque[Action] = field(default_factory=deque)

    def forward(self, side: Side) -> None:
        self.actions.append(side.forward())

    def backward(self, side: Side) -> None:
        self.actions.append(side.backward(Kind.BACKWARD))

    def backward_input(self, side: Side) -> None:
        """The input half; its weight half joins the queue."""
        action = side.backward(Kind.BACKWARD_INPUT)
        self.actions.append(action)
        self.waiting.append(action._replace(kind=Kind.BACKWARD_WEIGHT))

    def weight(self, side: Side | None = None) -> None:
        """The weight half that has waited longest, of this chunk or of any; nothing if none waits."""
        for action in self.waiting:
            if side is None or action.chunk == side.chunk:
                self.waiting.remove(action)
                self.actions.append(action)
                return

    def pair(self, forward: Side, backward: Side) -> None:
        """A forward and a whole backward, run as one computation."""
        self.actions.append(forward.forward()._replace(pairs_with_next=True))
        self.actions.append(backward.backward(Kind.BACKWARD))
