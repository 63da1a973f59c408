"""Sends and receives, derived from the order of the computations.

A result that another rank needs is sent right behind the computation that makes it. The receive is posted in front of the
computation that the receiver is busy with at that moment (by the clock of unit_time.py), neither earlier, which would hold a
buffer for nothing, nor later, which would hold up a sender that blocks.

The messages between two computations of a rank are one batch: all of them are posted before any of them is waited for. With
that, no order made here can deadlock even where a send blocks until its receive is posted: a batch only waits for batches that
are posted at an earlier or the same tick of the clock, and the posting of a batch needs only batches of strictly earlier ticks.
Between any two ranks, messages are received in the order in which they are sent.
"""

from __future__ import annotations

from bisect import bisect_right
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
    sends, receives = _messages(schedule, times)
    lists = []
    for rank, actions in enumerate(schedule.actions):
        together: list[Action] = []
        for step, action in enumerate(actions):
            together += receives[rank].get(step, ())
            together.append(action)
            together += sends[rank].get(step, ())
        lists.append(tuple(_receives_first(together)))
    return replace(schedule, actions=tuple(lists))


def without_communication(schedule: Schedule) -> Schedule:
    """The computations alone."""
    lists = tuple(tuple(action for action in actions if action.kind in COMPUTE_KINDS) for actions in schedule.actions)
    return schedule if lists == schedule.actions else replace(schedule, actions=lists)


Places = list[dict[int, list[Action]]]


def _messages(schedule: Schedule, times: list[list[tuple[int, int]]]) -> tuple[Places, Places]:
    """For each rank: sends behind, and receives in front of, its steps."""
    sends: Places = [{} for _ in schedule.actions]
    receives: Places = [{} for _ in schedule.actions]
    starts = [[start for start, _ in found] for found in times]
    order = sorted((times[rank][step][1], rank, step) for rank, actions in enumerate(schedule.actions) for step in range(len(actions)))
    for end, rank, step in order:
        action = schedule.actions[rank][step]
        message = _message(schedule, action)
        if message is None:
            continue
        send, receive = message
        receiver = schedule.rank_of_chunk[receive.chunk]
        behind = step + 1 if action.pairs_with_next else step
        sends[rank].setdefault(behind, []).append(send)
        busy_with = bisect_right(starts[receiver], end) - 1
        busy_with = max(busy_with, 0)
        if busy_with and schedule.actions[receiver][busy_with - 1].pairs_with_next:
            busy_with -= 1
        receives[receiver].setdefault(busy_with, []).append(receive)
    return sends, receives


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


def _receives_first(actions: list[Action]) -> list[Action]:
    """Inside every batch, receives in front of sends."""
    ordered: list[Action] = []
    sends: list[Action] = []
    receives: list[Action] = []
    for action in actions:
        if action.kind in COMPUTE_KINDS:
            ordered += (*receives, *sends, action)
            receives, sends = [], []
        elif action.kind in (Kind.RECV_FORWARD, Kind.RECV_BACKWARD):
            receives.append(action)
        else:
            sends.append(action)
    return [*ordered, *receives, *sends]
