"""A whole step of a plan: the simulated pipeline, and what comes after it until the next one may begin.

    a rank's last computation -> its gradient reductions, as far as its computations did not hide them -> what nothing hides
    (sums over tp, of a shared embedding, of expert loads) -> the gradient norm, for which all ranks wait -> optimizer, and
    ZeRO's parameter gather as far as the next forward does not hide it

One rank stands for all that have its pipeline coordinate: they compute and send the same. ``estimate``, ``timeline`` and the
finalists of ``plan`` take their step from here; step_time.py's formula orders the rest of a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from meshwright.boundaries import representatives
from meshwright.chunk_time import ChunkTime, chunk_times
from meshwright.schedule import build, check_fit
from meshwright.step_time import PART_NAMES, OncePerStep, Parts, busy_parts, exposed_gather_s, once_per_step
from meshwright.timeline.critical_path import Link, critical_path
from meshwright.timeline.of_plan import plan_costs, plan_schedule
from meshwright.timeline.reduction import Reduction, reductions
from meshwright.timeline.simulate import simulate
from meshwright.timeline.slow import Slow, slow_down
from meshwright.timeline.waiting import waiting_s

if TYPE_CHECKING:
    import numpy.typing as npt

    from meshwright.priced import Priced
    from meshwright.schedule import Schedule
    from meshwright.timeline.costs import Costs
    from meshwright.timeline.events import Timeline

__all__ = ["RankEnd", "Step", "simulate_step", "simulated_parts"]


@dataclass(frozen=True)
class RankEnd:
    """The end of a step on one pipeline rank.

    Attributes:
        computed_s: when its last computation, and its message, have ended.
        reductions: of gradients, beside the computations or after them.
        reduced_s: when its gradients are complete, all sums included.
        optimizer_s, collect_s: seconds of AdamW, and of what sticks out of the parameter gather behind it.
    """

    computed_s: float
    reductions: tuple[Reduction, ...]
    reduced_s: float
    optimizer_s: float
    collect_s: float


@dataclass(frozen=True)
class Step:
    """One step of one layout.

    Attributes:
        timeline: its pipeline (p = 1: a rank that never waits), starting at 0.
        ends: of each pipeline rank. scalars_s: token count and gradient norm. slow: what was made slow.
    """

    numbers: Priced
    timeline: Timeline
    ends: tuple[RankEnd, ...]
    scalars_s: float
    slow: tuple[Slow, ...] = ()

    @cached_property
    def last_rank(self) -> int:
        """The rank whose gradients are complete last: the others wait for it."""
        return max(range(len(self.ends)), key=lambda rank: self.ends[rank].reduced_s)

    @property
    def reduced_s(self) -> float:
        """When all gradients are complete."""
        return self.ends[self.last_rank].reduced_s

    @cached_property
    def step_s(self) -> float:
        """The sum of the parts, which may differ from the sum of the moments in its last bit; with something slow, the latter."""
        return self._until_next_s if self.slow else float(self.parts.step_s)

    @property
    def _until_next_s(self) -> float:
        return self.reduced_s + self.scalars_s + max(end.optimizer_s + end.collect_s for end in self.ends)

    @cached_property
    def critical_path(self) -> list[Link]:
        """The chain that decides the step: shorten anything else and nothing changes. The pieces follow each other without a gap."""
        rank, end = self.last_rank, self.ends[self.last_rank]
        chain = critical_path(self.timeline, rank)
        now = chain[-1].end_s
        slowest = max(range(len(self.ends)), key=lambda r: self.ends[r].optimizer_s + self.ends[r].collect_s)
        after = [
            ("transfer", rank, end.computed_s - now), ("gradients", rank, end.reduced_s - end.computed_s), ("norm", rank, self.scalars_s),
            ("optimizer", slowest, self.ends[slowest].optimizer_s), ("parameters", slowest, self.ends[slowest].collect_s),
        ]  # fmt: skip
        for what, where, seconds in after:
            if seconds > 0:
                chain.append(Link(what, where, -1, -1, now, now + seconds))
                now += seconds
        return chain

    @property
    def bubble_fraction(self) -> float:
        return self.timeline.bubble_fraction if len(self.ends) > 1 else 0.0

    @cached_property
    def waiting_s(self) -> dict[str, npt.NDArray[np.float64]]:
        """Seconds by cause, shape [p] each; with what a rank computes they add up to ``reduced_s`` on every rank.

        ``gradients`` is a rank's own reduction as far as nothing hides it; ``end`` the wait for the rank that is last.
        """
        found = waiting_s(self.timeline)
        found["gradients"] = np.array([end.reduced_s - end.computed_s for end in self.ends])
        found["end"] = np.array([self.reduced_s - end.reduced_s for end in self.ends])
        return found

    @cached_property
    def parts(self) -> Parts:
        """The step by parts, those of the rank that is busy longest; what it waits for others is ``bubble_s``.

        Durations are the plan's own: those of a step with something slow in it are not told apart.
        """
        priced, times = self.numbers, chunk_times(self.numbers)
        by_stage = [(index, busy_parts(priced, times, index)) for index, _ in representatives(priced)]
        index, parts = max(by_stage, key=lambda one: float(one[1].step_s))
        once, end = Parts(), self.ends[index]
        once_per_step(priced, priced.ledger.stage(index), once)
        for name in PART_NAMES:
            setattr(parts, name, float(getattr(parts, name) + getattr(once, name)))
        sums_s = float(once.tp_s + once.ep_s + once.dp_s)
        parts.dp_s += max(end.reduced_s - end.computed_s - sums_s, 0.0) + end.collect_s
        parts.other_s += self.scalars_s
        parts.bubble_s = max(self._until_next_s - parts.step_s, 0.0) if len(self.ends) > 1 else 0.0
        return parts


def simulate_step(numbers: Priced, slow: Sequence[Slow] = (), schedule: Schedule | None = None) -> Step:
    """One step of one layout (not of an array of them), with something slow in it if asked.

    Args:
        schedule: read from a file; None for the one that the layout's word says.

    Raises:
        InputError: a number of micro-batches that the schedule cannot take, a schedule that is not for the layout; a slow stage, rank or
            link that there is not.
    """
    if schedule is None:
        schedule = plan_schedule(numbers)
    else:
        check_fit(schedule, numbers.ledger.layout, int(numbers.ledger.micro_batches))
    costs = plan_costs(numbers, schedule)
    for one in slow:
        costs = slow_down(schedule, costs, one)
    return _step(numbers, schedule, costs, tuple(slow))


def simulated_parts(numbers: Priced) -> tuple[Parts, float]:
    """(the parts of a simulated step, its bubble fraction): all that an estimate asks of it.

    A single stage never waits: what it exposes at the end of a step is the same behind one micro-batch as behind thousands.
    """
    schedule = plan_schedule(numbers) if numbers.ledger.layout.pp > 1 else build("1f1b", p=1, v=1, m=1)
    step = _step(numbers, schedule, plan_costs(numbers, schedule))
    return step.parts, step.bubble_fraction


def _step(numbers: Priced, schedule: Schedule, costs: Costs, slow: tuple[Slow, ...] = ()) -> Step:
    timeline = simulate(schedule, costs)
    return Step(numbers, timeline, _ends(numbers, timeline), float(numbers.scalars_s), slow)


def _ends(numbers: Priced, timeline: Timeline) -> tuple[RankEnd, ...]:
    """Ranks that share the embedding start to sum its gradient together."""
    times = chunk_times(numbers)
    found, shared = [], {}
    for rank in range(timeline.schedule.num_ranks):
        found.append(_end(numbers, timeline, rank, times))
        stage = numbers.ledger.stage(rank)
        if stage.first != stage.last and (shared_s := float(numbers.root(stage.first, stage.last).shared_s)):
            shared[rank] = found[rank].reduced_s - shared_s
    together_s = max(shared.values(), default=0.0)
    return tuple(_later(end, together_s - shared.get(rank, together_s)) for rank, end in enumerate(found))


def _later(end: RankEnd, seconds: float) -> RankEnd:
    return end if not seconds else RankEnd(end.computed_s, end.reductions, end.reduced_s + seconds, end.optimizer_s, end.collect_s)


def _end(numbers: Priced, timeline: Timeline, rank: int, times: list[ChunkTime]) -> RankEnd:
    stage, once = numbers.ledger.stage(rank), Parts()
    per_step: OncePerStep = once_per_step(numbers, stage, once)
    computed_s = float(timeline.computed_s[rank])
    reduced = reductions(numbers, timeline, rank)
    reduced_s = max(computed_s, reduced[-1].end_s if reduced else 0.0) + float(once.tp_s + once.ep_s + once.dp_s)
    collect_s = float(exposed_gather_s(numbers, stage, times, per_step))
    return RankEnd(computed_s, tuple(reduced), reduced_s, float(once.optimizer_s), collect_s)
