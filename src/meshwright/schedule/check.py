"""Proves of a schedule that it does every computation once, in an order that can run, with messages that cannot deadlock.

A send may block until its receive is posted, and a rank may keep only what its list says; so a list that passes here runs on a
backend without buffers and without tags. The checks know nothing of how the lists were made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from meshwright.errors import Mistakes
from meshwright.schedule.actions import COMPUTE_KINDS, Action, Kind, Schedule
from meshwright.schedule.communication import with_communication, without_communication
from meshwright.schedule.in_flight import count_in_flight
from meshwright.schedule.unit_time import input_of, unit_times

__all__ = ["Checked", "check"]

BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


@dataclass(frozen=True)
class Checked:
    """What was proved.

    Attributes:
        computations: forwards, backwards and halves of backwards of all ranks.
        messages: sends of all ranks; each has its receive.
        in_flight_chunks: for each rank, the most chunk activations that it holds at once.
    """

    computations: int
    messages: int
    in_flight_chunks: tuple[int, ...]


def check(schedule: Schedule) -> Checked:
    """Check a schedule's lists; those without messages get theirs first.

    Raises:
        InputError: what is wrong, each with rank, step (place in the rank's list, from 0) and action.
    """
    check_computations(schedule)
    computations = without_communication(schedule)
    if computations is schedule:
        schedule = with_communication(schedule)  # which puts the computations on a clock itself
    else:
        unit_times(computations)
    check_messages(schedule)
    run_with_blocking_sends(schedule)
    sends = sum(action.kind in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD) for actions in schedule for action in actions)
    return Checked(sum(map(len, computations)), sends, tuple(count_in_flight(schedule).tolist()))


IN_ORDER = "each micro-batch once forward and once backward on each chunk, and nothing used before it is made, sent and received"
HINT = "`1f1b`, `zb-1p` and the other names of pp=P:SCHEDULE have such an order"


def check_computations(schedule: Schedule) -> None:
    """Every micro-batch: one forward on every chunk, then one backward, whole or in two halves, the input half first."""
    with Mistakes.of(schedule.name) as mistakes:
        for rank, actions in enumerate(schedule.actions):
            seen: set[tuple[Kind, int, int]] = set()
            for step, action in enumerate(actions):
                if problem := _misplaced(schedule, rank, action) or _out_of_turn(actions, step, seen):
                    _add(mistakes, rank, step, action, problem)
                seen.add((action.kind, action.chunk, action.micro_batch))
            _find_missing(schedule, rank, seen, mistakes)


def _misplaced(schedule: Schedule, rank: int, action: Action) -> str:
    if not 0 <= action.chunk < schedule.num_chunks:
        return f"is on a chunk that does not exist (there are {schedule.num_chunks})"
    if schedule.rank_of_chunk[action.chunk] != rank:
        return f"is on a chunk that rank {schedule.rank_of_chunk[action.chunk]} holds"
    if action.micro_batch not in schedule.micro_batches_of(action.chunk):
        return "is of a micro-batch that does not pass this chunk"
    return ""


def _out_of_turn(actions: tuple[Action, ...], step: int, seen: set[tuple[Kind, int, int]]) -> str:
    action = actions[step]
    where = action.chunk, action.micro_batch
    if (action.kind, *where) in seen:
        return "is there twice"
    if action.kind in BACKWARDS and (Kind.FORWARD, *where) not in seen:
        return "comes before its forward"
    if action.kind in BACKWARDS and any((kind, *where) in seen for kind in BACKWARDS):
        return "is the second backward of this micro-batch"
    if action.kind == Kind.BACKWARD_WEIGHT and (Kind.BACKWARD_INPUT, *where) not in seen:
        return "comes before the input half of its backward"
    if action.pairs_with_next:
        partner = actions[step + 1] if step + 1 < len(actions) else None
        if action.kind != Kind.FORWARD or partner is None or partner.kind not in BACKWARDS or partner.pairs_with_next:
            return "is to run as one with its successor, which takes a forward and a backward"
    return ""


def _find_missing(schedule: Schedule, rank: int, seen: set[tuple[Kind, int, int]], mistakes: Mistakes) -> None:
    for chunk in (c for c in range(schedule.num_chunks) if schedule.rank_of_chunk[c] == rank):
        for k in schedule.micro_batches_of(chunk):
            halved = (Kind.BACKWARD_INPUT, chunk, k) in seen
            needed = (Kind.FORWARD, Kind.BACKWARD_WEIGHT) if halved else (Kind.FORWARD, Kind.BACKWARD)
            for kind in needed:
                if (kind, chunk, k) not in seen:
                    _add(mistakes, rank, len(schedule.actions[rank]), Action(kind, chunk, k), "is missing")


def check_messages(schedule: Schedule) -> None:
    """Every result that another rank needs is sent after it is made and received before it is used; nothing else is sent.

    Between two ranks the receives come in the order of the sends: there need not be tags.
    """
    with Mistakes.of(schedule.name) as mistakes:
        sent: dict[tuple[int, int], deque[tuple[bool, int, int]]] = {}
        for rank, actions in enumerate(schedule.actions):
            _check_rank_messages(schedule, rank, actions, sent, mistakes)
        for rank, actions in enumerate(schedule.actions):
            for step, action in enumerate(actions):
                source = _source(schedule, action)
                if source is None:
                    continue
                queue = sent.get((schedule.rank_of_chunk[source[1]], rank), deque())
                if not queue or queue.popleft() != source:
                    _add(mistakes, rank, step, action, "receives what is not sent, or not sent at this place of the order")
                    break
        for (source_rank, rank), queue in sent.items():
            if queue and not mistakes.found:
                gradient, chunk, k = queue[0]
                kind = Kind.SEND_BACKWARD if gradient else Kind.SEND_FORWARD
                action = Action(kind, chunk, k)
                step = schedule.actions[source_rank].index(action)
                _add(mistakes, source_rank, step, action, f"is never received by rank {rank}")


def _check_rank_messages(
    schedule: Schedule,
    rank: int,
    actions: tuple[Action, ...],
    sent: dict[tuple[int, int], deque[tuple[bool, int, int]]],
    mistakes: Mistakes,
) -> None:
    """This rank's sends follow their computations, and its computations follow their receives."""
    made: set[tuple[bool, int, int]] = set()
    received: set[tuple[bool, int, int]] = set()
    for step, action in enumerate(actions):
        gradient = action.kind in (*BACKWARDS, Kind.SEND_BACKWARD)
        result = gradient, action.chunk, action.micro_batch
        if action.kind in COMPUTE_KINDS:
            need = input_of(schedule, action)
            if need is not None and schedule.rank_of_chunk[need[1]] != rank and need not in received:
                _add(mistakes, rank, step, action, "comes before its input is received")
            if action.kind != Kind.BACKWARD_WEIGHT:
                made.add(result)
        elif (source := _source(schedule, action)) is not None:
            if source in received:
                _add(mistakes, rank, step, action, "is there twice")
            received.add(source)
        else:
            target = action.chunk - 1 if gradient else action.chunk + 1
            end = schedule.is_first(action.chunk) if gradient else schedule.is_last(action.chunk)
            if end or schedule.rank_of_chunk[target] == rank:
                _add(mistakes, rank, step, action, "sends what no other rank needs")
                continue
            if result not in made:
                _add(mistakes, rank, step, action, "comes before what it sends is made")
            sent.setdefault((rank, schedule.rank_of_chunk[target]), deque()).append(result)


def _source(schedule: Schedule, action: Action) -> tuple[bool, int, int] | None:
    """What a receive receives: (is a gradient, chunk that made it, micro-batch); None for anything else."""
    if action.kind == Kind.RECV_FORWARD and not schedule.is_first(action.chunk):
        return False, action.chunk - 1, action.micro_batch
    if action.kind == Kind.RECV_BACKWARD and not schedule.is_last(action.chunk):
        return True, action.chunk + 1, action.micro_batch
    return None


def run_with_blocking_sends(schedule: Schedule) -> None:
    """Run the lists where every send blocks until its receive is posted, a batch of messages being posted as a whole.

    A batch is all messages between two computations; the rank goes on when its sends have met their receives. (That a
    computation's input has been sent follows: its send is met, too.)

    Raises:
        InputError: some ranks block each other for ever; each with its step and action.
    """
    posted: set[tuple[bool, int, int]] = set()
    met: set[tuple[bool, int, int]] = set()
    place = [0] * schedule.num_ranks
    reached = [-1] * schedule.num_ranks
    order = list(range(schedule.num_ranks))
    progress = True
    while progress:
        progress = False
        order.reverse()  # down the ranks and up again, as activations and gradients go
        for rank in order:
            actions = schedule.actions[rank]
            while place[rank] < len(actions):
                if reached[rank] < place[rank]:
                    reached[rank] = _post_batch(schedule, actions, place[rank], posted)
                    progress = True
                if not _passes(schedule, rank, actions[place[rank]], posted, met):
                    break
                place[rank] += 1
                progress = True
    with Mistakes.of(schedule.name) as mistakes:
        for rank, step in enumerate(place):
            if step < len(schedule.actions[rank]):
                _add(mistakes, rank, step, schedule.actions[rank][step], "blocks for ever: the ranks wait for each other")


def _post_batch(schedule: Schedule, actions: tuple[Action, ...], step: int, posted: set[tuple[bool, int, int]]) -> int:
    """Post the receives of the batch that starts at this step; returns its last step (this one for a computation)."""
    last = step
    while last < len(actions) and actions[last].kind not in COMPUTE_KINDS:
        if (source := _source(schedule, actions[last])) is not None:
            posted.add(source)
        last += 1
    return max(step, last - 1)


def _passes(schedule: Schedule, rank: int, action: Action, posted: set[tuple[bool, int, int]], met: set[tuple[bool, int, int]]) -> bool:
    """Whether the rank gets past this action now."""
    if action.kind in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD):
        result = action.kind == Kind.SEND_BACKWARD, action.chunk, action.micro_batch
        if result not in posted:
            return False
        met.add(result)
    need = input_of(schedule, action) if action.kind in COMPUTE_KINDS else None
    return need is None or schedule.rank_of_chunk[need[1]] == rank or need in met


def _add(mistakes: Mistakes, rank: int, step: int, action: Action, problem: str) -> None:
    mistakes.add(f"rank {rank}, step {step}", str(action), IN_ORDER, HINT, problem)
