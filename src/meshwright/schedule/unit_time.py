"""A common clock for the ranks of a schedule: when each computation starts if forward, I and W each take one unit.

It answers two questions without any durations: can the order run at all, and which of two ranks gets somewhere first.
"""

from __future__ import annotations

from meshwright.errors import InputError, Mistake
from meshwright.schedule.actions import Action, Kind, Schedule

__all__ = ["input_of", "stuck", "unit_times"]

UNITS = {Kind.FORWARD: 1, Kind.BACKWARD_INPUT: 1, Kind.BACKWARD_WEIGHT: 1, Kind.BACKWARD: 2}


def input_of(schedule: Schedule, action: Action) -> tuple[bool, int, int] | None:
    """What a computation needs from another chunk: (is a gradient, chunk, micro-batch), or None."""
    if action.kind == Kind.FORWARD:
        return None if schedule.is_first(action.chunk) else (False, action.chunk - 1, action.micro_batch)
    if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        return None if schedule.is_last(action.chunk) else (True, action.chunk + 1, action.micro_batch)
    return None


def unit_times(schedule: Schedule) -> list[list[tuple[int, int]]]:
    """(start, end) of every computation; a pair runs as one, in the time of both.

    Args:
        schedule: lists of computations only.

    Raises:
        InputError: some rank waits for ever; each such rank with its step and action.
    """
    done: dict[tuple[bool, int, int], int] = {}
    waiting: dict[tuple[bool, int, int], int] = {}
    times: list[list[tuple[int, int]]] = [[] for _ in schedule.actions]
    ready = list(range(schedule.num_ranks))
    while ready:
        rank = ready.pop()
        actions, found = schedule.actions[rank], times[rank]
        while len(found) < len(actions):
            group = _group(actions, len(found))
            start, end = found[-1][1] if found else 0, 0
            missing = None
            for action in group:
                end += UNITS[action.kind]
                if (need := input_of(schedule, action)) is not None:
                    if need not in done:
                        missing = need
                        break
                    start = max(start, done[need])
            if missing is not None:
                waiting[missing] = rank
                break
            end += start
            for action in group:
                found.append((start, end))
                if action.kind != Kind.BACKWARD_WEIGHT:
                    result = action.kind != Kind.FORWARD, action.chunk, action.micro_batch
                    done[result] = end
                    if result in waiting:
                        ready.append(waiting.pop(result))
    if any(len(found) < len(actions) for found, actions in zip(times, schedule.actions, strict=True)):
        raise stuck(schedule, [len(found) for found in times])
    return times


def _group(actions: tuple[Action, ...], step: int) -> tuple[Action, ...]:
    """The action at this step, or the two of a pair."""
    return actions[step : step + (2 if actions[step].pairs_with_next else 1)]


def stuck(schedule: Schedule, positions: list[int]) -> InputError:
    """The error for ranks that stand at these positions of their lists and never get on."""
    mistakes = []
    for rank, (actions, step) in enumerate(zip(schedule.actions, positions, strict=True)):
        if step == len(actions):
            continue
        what = []
        for action in _group(actions, step):
            need = input_of(schedule, action)
            if need is not None:
                what.append(f"the {'backward' if need[0] else 'forward'} of micro-batch {need[2]} on chunk {need[1]}")
        mistakes.append(Mistake(
            schedule.name, f"rank {rank}, step {step}", str(actions[step]), "an order in which every input is made before it is used",
            f"it waits for {' and '.join(what)}", "never starts",
        ))  # fmt: skip
    return InputError(mistakes)
