"""Sends and receives, derived from the order of the computations.

The computations of all ranks are brought into one order, that in which they end by the clock of unit_time.py. Behind a
computation whose result another rank needs stands its send, and at the same place of the order the receive in the receiver's
list. So a receive is posted in front of the computation that its rank is busy with when the message is ready: no earlier, which
would hold a buffer for nothing, and no later, which would hold up a sender.

Every list is a part of that one order, in which a receive directly follows its send. So no lists made here can deadlock: neither
where a send blocks until its receive is posted, nor where a receive blocks until its send is. The messages between two
computations of a rank may be posted as one batch. Between any two ranks, messages are received in the order of their sends.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.schedule.actions import COMPUTE_KINDS, Action, Kind, Schedule
from meshwright.schedule.unit_time import unit_times

__all__ = ["with_communication", "without_communication"]


def with_communication(schedule: Schedule) -> Schedule:
    """The same schedule with its sends and receives.

    Raises:
        InputError: the order of the computations is impossible (names rank, step and action).
    """
    schedule = without_communication(schedule)
    times = unit_times(schedule)
    order = sorted((end, rank, step) for rank, found in enumerate(times) for step, (_, end) in enumerate(found))
    lists: list[list[Action]] = [[] for _ in schedule.actions]
    held_back: list[Action] = []  # the forward of a pair: its message goes behind the pair
    for _, rank, step in order:
        action = schedule.actions[rank][step]
        lists[rank].append(action)
        if action.pairs_with_next:
            held_back.append(action)
            continue
        for done in (*held_back, action):
            message = _message(schedule, done)
            if message is not None:
                send, receive = message
                lists[rank].append(send)
                lists[schedule.rank_of_chunk[receive.chunk]].append(receive)
        held_back.clear()
    return replace(schedule, actions=tuple(map(tuple, lists)))


def without_communication(schedule: Schedule) -> Schedule:
    """The computations alone."""
    lists = tuple(tuple(action for action in actions if action.kind in COMPUTE_KINDS) for actions in schedule.actions)
    return schedule if lists == schedule.actions else replace(schedule, actions=lists)


def _message(schedule: Schedule, action: Action) -> tuple[Action, Action] | None:
    """The send of this computation's result and its receive; None where it stays on the rank."""
    if action.kind == Kind.FORWARD and not schedule.is_last(action.chunk):
        kinds, target = (Kind.SEND_FORWARD, Kind.RECV_FORWARD), action.chunk + 1
    elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and not schedule.is_first(action.chunk):
        kinds, target = (Kind.SEND_BACKWARD, Kind.RECV_BACKWARD), action.chunk - 1
    else:
        return None
    if schedule.rank_of_chunk[target] == schedule.rank_of_chunk[action.chunk]:
        return None
    return Action(kinds[0], action.chunk, action.micro_batch), Action(kinds[1], target, action.micro_batch)
