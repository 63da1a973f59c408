"""ZB-1p and ZB-2p: the zero-bubble paper's automatic schedules (arXiv 2401.10241 section 3.1), made for given durations.

A greedy construction under a limit of 1 x p or 2 x p micro-batches held per rank: as many forwards as fit before the first
backward arrives, then one backward and one forward in turn; weight halves go where a rank would wait, or where the memory of
a forward has to be freed first. The paper's two choices that depend on the case are tried both ways, so are the handcrafted
schedules of the same memory (ZB-H1, ZB-H2), and the one whose longest rank is shortest is taken. (The paper may then improve a
schedule by integer programming; this does not.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from meshwright.schedule.actions import Action, Kind

__all__ = ["PassTimes", "all_actions"]


@dataclass(frozen=True)
class PassTimes:
    """Seconds (or any unit) of one micro-batch's passes: one number, or one per stage.

    Attributes:
        forward: F.
        backward_input: B in the paper.
        backward_weight: W.
        transfer: one message between neighbouring stages.
        weight_share: of a micro-batch's activations, the part that the weight half still needs (M_W / M_B in the paper, whose
            Table 1 has 32 h / (34 h + 5 a s) for a GPT layer whose attention scores are saved).
    """

    forward: float | Sequence[float] = 1.0
    backward_input: float | Sequence[float] = 1.0
    backward_weight: float | Sequence[float] = 1.0
    transfer: float = 0.0
    weight_share: float = 1.0


def all_actions(p: int, m: int, memory: int, times: PassTimes) -> list[list[Action]]:
    """The lists of all ranks.

    Args:
        p: ranks.
        m: micro-batches.
        memory: a rank holds at most ``memory * p`` micro-batches' activations.
        times: what the schedule is made for.
    """
    by_hand = _Plan(p, m, memory * p, times)
    by_hand.run_by_hand(memory)
    plans = [by_hand]
    for one_more, level in product((False, True), repeat=2):
        plans.append(_Plan(p, m, memory * p, times))
        plans[-1].run(one_more, level)
    shortest = min(plan.longest_rank() for plan in plans)
    return next(plan for plan in plans if plan.longest_rank() <= shortest * (1 + 1e-9)).actions


class _Plan:
    """One schedule under construction: for each stage its passes so far and when they end."""

    def __init__(self, p: int, m: int, limit: int, times: PassTimes) -> None:
        self.p, self.m, self.limit = p, m, limit
        self.transfer, self.weight_share = times.transfer, times.weight_share
        self.forward, self.input, self.weight = (
            _per_stage(value, p) for value in (times.forward, times.backward_input, times.backward_weight)
        )
        self.actions: list[list[Action]] = [[] for _ in range(p)]
        self.forward_end: list[list[float]] = [[] for _ in range(p)]
        self.input_end: list[list[float]] = [[] for _ in range(p)]
        self.weights_done = [0] * p
        self.free = [0.0] * p
        self.waited = [0.0] * p
        self.level = False
        self.lag: list[int] | None = None

    def run(self, one_more: bool, level: bool) -> None:
        """Build it.

        Args:
            one_more: in the warm-up, also take the forward that the first backward has to wait for.
            level: fill a wait shorter than a weight half, too, if this stage would become the one that waited most.
        """
        self.level = level
        self._run(self._warm_up(one_more), lag=None)

    def run_by_hand(self, reach: int) -> None:
        """ZB-H1 (reach 1) or ZB-H2 (reach 2), see zero_bubble.py: weight halves at fixed places."""
        warm_up = [min(reach * (self.p - stage) - (reach - 1), self.m) for stage in range(self.p)]
        self._run(warm_up, lag=[reach * stage for stage in range(self.p)])

    def _run(self, warm_up: list[int], lag: list[int] | None) -> None:
        self.lag = lag
        for stage, count in enumerate(warm_up):
            for _ in range(count):
                self._add_forward(stage)
        for k in range(self.m):
            for stage in reversed(range(self.p)):
                self._add_input(stage)
                if lag is not None and k >= lag[stage]:
                    self._add_weight(stage)
            for stage in range(self.p):
                if len(self.forward_end[stage]) < self.m:
                    self._add_forward(stage)
        for stage in range(self.p):
            while self.weights_done[stage] < self.m:
                self._add_weight(stage)

    def longest_rank(self) -> float:
        """The paper's cost: the longest time from a rank's first pass to its last."""
        return max(self.free[s] - (self.forward_end[s][0] - self.forward[s]) for s in range(self.p))

    def _warm_up(self, one_more: bool) -> list[int]:
        """Forwards of each stage before its first backward; each stage at least one more than the next."""
        start, back = [0.0], [0.0]
        for stage in range(self.p - 1):
            start.append(start[-1] + self.forward[stage] + self.transfer)
        for stage in reversed(range(1, self.p)):
            back.insert(0, back[0] + self.input[stage] + self.transfer)
        end = start[-1] + self.forward[-1]
        slowest = 0.0
        counts: list[int] = []
        for stage in range(self.p):
            slowest = max(slowest, self.forward[stage])
            spare = end + back[stage] - (start[stage] + self.forward[stage])
            count = 1 + int(spare / slowest + 1e-9)
            if one_more and count * slowest < spare + self.forward[stage] - 1e-9:
                count += 1
            previous = counts[-1] - 1 if counts else self.limit
            counts.append(max(min(count, previous, self.m), 1))
        for stage in reversed(range(self.p - 1)):
            counts[stage] = max(counts[stage], min(counts[stage + 1] + 1, self.m))
        return counts

    def _add_forward(self, stage: int) -> None:
        micro_batch = len(self.forward_end[stage])
        ready = self.forward_end[stage - 1][micro_batch] + self.transfer if stage else 0.0
        while self._held(stage) + 1 > self.limit + 1e-9:
            self._add_weight(stage)
        self._fill(stage, ready)
        self.forward_end[stage].append(self._place(stage, Kind.FORWARD, micro_batch, ready, self.forward[stage]))

    def _held(self, stage: int) -> float:
        """Micro-batches' worth of activations that the stage holds."""
        inputs = len(self.input_end[stage])
        return len(self.forward_end[stage]) - inputs + self.weight_share * (inputs - self.weights_done[stage])

    def _add_input(self, stage: int) -> None:
        micro_batch = len(self.input_end[stage])
        ready = self.input_end[stage + 1][micro_batch] + self.transfer if stage + 1 < self.p else 0.0
        self._fill(stage, ready)
        self.input_end[stage].append(self._place(stage, Kind.BACKWARD_INPUT, micro_batch, ready, self.input[stage]))

    def _add_weight(self, stage: int) -> None:
        micro_batch = self.weights_done[stage]
        self._place(stage, Kind.BACKWARD_WEIGHT, micro_batch, 0.0, self.weight[stage])
        self.weights_done[stage] += 1

    def _fill(self, stage: int, ready: float) -> None:
        """Weight halves into the wait before a pass that is ready only then."""
        while self.lag is None and self.weights_done[stage] < len(self.input_end[stage]):
            wait = ready - self.free[stage]
            if wait <= 1e-9:
                return
            fits = wait >= self.weight[stage] - 1e-9
            worst = self.level and self.waited[stage] + wait > max(self.waited)
            if not fits and not worst:
                return
            self._add_weight(stage)

    def _place(self, stage: int, kind: Kind, micro_batch: int, ready: float, duration: float) -> float:
        begin = max(self.free[stage], ready)
        if self.actions[stage]:
            self.waited[stage] += begin - self.free[stage]
        self.actions[stage].append(Action(kind, stage, micro_batch))
        self.free[stage] = begin + duration
        return self.free[stage]


def _per_stage(value: float | Sequence[float], p: int) -> list[float]:
    return [float(value)] * p if isinstance(value, int | float) else [float(one) for one in value]
