"""Which of the ranks that wait for each other left the order that the program has.

Two ranks that wait in different groups have each entered a call that the other has not come to; neither group shows who is wrong. The
ranks' whole programs do: all ranks with the same past should go on alike, and the program goes on alike in every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshwright.diagnose.job import JobCalls
from meshwright.diagnose.suspects import consistent

Place = tuple[object, ...]
"""A call, apart from with whom: (axis, op, module, step, micro-batch)."""

TIMELESS = 3
"""The first so many parts of a Place do not depend on the step."""


def leavers(job: JobCalls, ranks: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """(those of ``ranks`` that left the order, the reason in a sentence); (), "" where that cannot be told.

    It needs recordings from the start of the job: a dump's last calls begin at another place on each rank.
    """
    programs = {rank: _program(job, rank) for rank, record in job.ranks.items() if record.from_start}
    mine = [programs[rank] for rank in ranks if rank in programs]
    if len(mine) < len(ranks):
        return (), ""
    place = next((at for at in range(min(map(len, mine))) if len({program[at] for program in mine}) > 1), None)
    if place is None:
        return (), ""
    past = mine[0][:place]
    alike = Counter(program[place] for program in programs.values() if len(program) > place and program[:place] == past)
    found = _odd(ranks, programs, place, alike)
    if found:
        return found, f"all ranks had done the same until then, and most went on with {_shown(alike.most_common(1)[0][0])}"
    own = consistent({rank: [call.event for call in job.ranks[rank].calls] for rank in ranks})
    found = tuple(rank for rank in ranks if not own.get(rank))
    if own and 0 < len(found) < len(ranks):
        return found, "the others did in this step what they do in their other steps"
    followed = Counter(
        (program[at - 1][:TIMELESS], program[at][:TIMELESS])
        for program in programs.values()
        for at in range(1, len(program))
        if at != place
    )
    before = past[-1][:TIMELESS] if past else ()
    votes = Counter({key: followed[before, key[:TIMELESS]] for key in alike})
    return _odd(ranks, programs, place, votes), "the others went on as the program does at other times after the same call"


def _program(job: JobCalls, rank: int) -> list[Place]:
    events = [call.event for call in job.ranks[rank].calls]
    return [(job.groups[e.group].axis if e.group in job.groups else e.group, e.op, e.module, e.step, e.micro_batch) for e in events]


def _odd(ranks: Sequence[int], programs: dict[int, list[Place]], place: int, votes: Counter[Place]) -> tuple[int, ...]:
    """The ranks that did not do what has most votes; () if two things have as many."""
    (best, most), *rest = votes.most_common(2) or [((), 0)]
    if not most or (rest and rest[0][1] == most):
        return ()
    return tuple(rank for rank in ranks if programs[rank][place] != best)


def _shown(place: Place) -> str:
    axis, op, module, *_ = place
    return f"{op} over {axis}" + (f" in {module}" if module else "")
