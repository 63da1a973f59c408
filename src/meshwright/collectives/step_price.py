"""Seconds of one algorithm, read off its step list: what the price of a collective is made of, and why one wins.

Bytes: each step takes as long as the slowest tier needs for what its busiest port carries, and steps follow one another; the
rise to full bandwidth (spec/network.py) is of a tier's bytes in all steps together, as in measurements, where steps are
pipelined. Into tier i a unit of c_{i-1} ranks has c_{i-1} adapters, and the list is run by that many lanes at once, each
starting at another local rank, so that the unit's traffic spreads over all of them (NCCL's channels); not where everything
passes one root. Latency: the longest chain of messages that wait for one another, each as late as its tier's latency, while
a rank that goes on to its next step waits for the innermost tier's latency only (LogP with gap o = g; Culler et al., "LogP:
towards a realistic model of parallel computation", PPoPP 1993). Rates are those of the price (rates.py).

The result is a line in the payload and its root, so that crossovers are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from meshwright.arithmetic import Num
from meshwright.collectives.algorithms import Algorithm, StepList
from meshwright.collectives.algorithms.steplist import Ints
from meshwright.collectives.line import NOTHING, Line
from meshwright.collectives.price import Group, in_switch_line, link_s_per_byte, reduces_in_switch
from meshwright.collectives.rates import rate
from meshwright.mesh import Leg, members_per_unit
from meshwright.spec.cluster import Cluster, Tier

PIECES = (1, 4, 16, 64)
"""Into how many pieces a pipelined algorithm may cut its payload."""


@dataclass(frozen=True)
class NamedLine:
    """The line of one step list of the algorithm ``name`` with ``steps`` steps."""

    name: str
    steps: int
    line: Line

    @property
    def latency_s(self) -> float:
        """Seconds that do not depend on the payload."""
        return float(self.line.latency_s)

    def time_s(self, payload_bytes: Num) -> Num:
        """Seconds of one call."""
        return self.line.time_s(payload_bytes)


def packed_group(ranks: int, cluster: Cluster) -> Group:
    """The shape of a group of neighbouring ranks; a number that does not fill its units is priced as smaller, full ones."""
    inner = [members_per_unit([Leg(1, ranks)], ranks, tier.size) for tier in cluster.tiers[:-1]]
    return Group(ranks, (*inner, ranks))


def lines(algorithm: Algorithm, ranks: int, cluster: Cluster) -> tuple[NamedLine, ...]:
    """The lines of an algorithm on a packed group; several where it can be pipelined more or less finely."""
    lists = [algorithm.build(ranks)] if algorithm.pipelined is None else [algorithm.pipelined(ranks, pieces) for pieces in PIECES]
    group = packed_group(ranks, cluster)
    return tuple(NamedLine(algorithm.name, steps.num_steps, line(steps, group, cluster.tiers, not algorithm.one_root)) for steps in lists)


def line(steps: StepList, group: Group, tiers: Sequence[Tier], lanes: bool) -> Line:
    """The line of one step list; ``group.members`` are the ranks in one unit of each tier, each dividing the next."""
    if not steps.num_steps:
        return NOTHING
    curves = [rate(tier, index == 0, steps.op) for index, tier in enumerate(tiers)]
    hop_s = np.zeros(len(steps))
    seconds = np.zeros((len(tiers), steps.num_steps))  # per byte of payload, of the busiest port
    open_rows = np.ones(len(steps), dtype=np.bool_)
    below: Num = 1
    for index, (tier, curve, members) in enumerate(zip(tiers, curves, group.members, strict=True)):
        inside = open_rows & (steps.sender // members == steps.receiver // members)
        passing = open_rows if index else inside  # a message to an outer tier passes the adapters on its way, not the node's own links
        load = _busiest(steps, passing, below if lanes else 1) / (below if lanes else 1)
        pace = link_s_per_byte(tier, curve.bandwidth_bytes_per_s, members / below - 1)
        open_rows = open_rows & ~inside
        hop_s[inside] = curve.step_latency_s
        seconds[index] = load * steps.chunk_bytes(1.0) * pace
        below = members
    slowest = seconds.argmax(axis=0)
    per_tier = np.bincount(slowest, seconds.max(axis=0), len(tiers))
    rise = float(np.sqrt(per_tier * [curve.rise_s for curve in curves]).sum())
    latency_s = curves[0].launch_s + _chain_s(steps, hop_s, curves[0].step_latency_s)
    return Line(latency_s, float(per_tier.sum()) + curves[0].copy_s_per_byte / steps.ranks, rise)


def _chain_s(steps: StepList, hop_s: NDArray[np.float64], gap_s: float) -> float:
    """When the last message arrives if bytes cost nothing; all messages of one rank in one step leave together."""
    sends, receives = np.zeros(steps.ranks), np.full(steps.ranks, -gap_s)  # when a rank is free to send, and last received
    held = np.zeros((steps.ranks, steps.chunks))  # when a rank has a chunk
    for begin, end in pairwise(np.searchsorted(steps.step, np.arange(steps.num_steps + 1))):
        sender, receiver, chunk = steps.sender[begin:end], steps.receiver[begin:end], steps.chunk[begin:end]
        start = sends.copy()
        np.maximum.at(start, sender, held[sender, chunk])
        arrival = np.maximum(start[sender] + hop_s[begin:end], receives[receiver] + gap_s)
        sends[sender] = start[sender] + gap_s
        np.maximum.at(receives, receiver, arrival)
        np.maximum.at(held, (receiver, chunk), arrival)
    return float(held.max())


def _busiest(steps: StepList, rows: NDArray[np.bool_], unit: int) -> Ints:
    """For each step, the most chunks among ``rows`` that ``unit`` neighbouring ranks send or receive together."""
    units = -(-steps.ranks // unit)
    busiest: Ints = np.zeros(steps.num_steps, dtype=np.int64)
    for side in (steps.sender, steps.receiver):
        counts = np.bincount(steps.step[rows] * units + side[rows] // unit, minlength=steps.num_steps * units)
        busiest = np.maximum(busiest, counts.reshape(steps.num_steps, units).max(axis=1))
    return busiest


def in_switch(ranks: int, cluster: Cluster) -> NamedLine | None:
    """An all_reduce that the switch adds up (NVLS); None where the price does not use it."""
    tier = cluster.tiers[0]
    if not tier.in_network_reduction or not reduces_in_switch(packed_group(ranks, cluster)):
        return None
    return NamedLine("in_switch", 1, in_switch_line(tier))


def best_line(found: Iterable[NamedLine], payload_bytes: float) -> NamedLine:
    """The fastest for one size; the first of equals."""
    return min(found, key=lambda candidate: candidate.time_s(payload_bytes))


@dataclass(frozen=True)
class Crossover:
    """At ``payload_bytes`` and above, ``to`` is faster than ``from_``, which was the fastest below."""

    from_: str
    to: str
    payload_bytes: float


def crossovers(found: Sequence[NamedLine], smallest: float, largest: float) -> tuple[Crossover, ...]:
    """Where the fastest algorithm changes between two sizes, in order.

    Two lines meet where a quadratic in the root of the payload is zero, at most twice; between neighbouring meetings of all
    pairs nothing changes, so that the middle of each stretch tells its fastest.
    """
    meetings = {size for first, second in combinations(found, 2) for size in _meetings(first.line, second.line)}
    bounds = [smallest, *sorted(size for size in meetings if smallest < size < largest), largest]
    changes: list[Crossover] = []
    now = best_line(found, float(np.sqrt(bounds[0] * bounds[1]))).name
    for low, high in pairwise(bounds[1:]):
        following = best_line(found, float(np.sqrt(low * high))).name
        if following != now:
            changes.append(Crossover(now, following, low))
        now = following
    return tuple(changes)


def _meetings(first: Line, second: Line) -> list[float]:
    """Payloads of more than 0 bytes for which two lines give the same time."""
    a, b = first.s_per_byte - second.s_per_byte, first.s_per_root_byte - second.s_per_root_byte
    c = first.latency_s - second.latency_s
    if a == 0:
        roots = [-c / b] if b else []
    else:
        inside = b * b - 4 * a * c
        # The root without cancellation first, the other from their product c/a (Numerical Recipes, section 5.6).
        q = -(b + float(np.copysign(np.sqrt(inside), b))) / 2 if inside >= 0 else 0.0
        roots = [q / a, c / q] if q else []
    return [x * x for x in roots if x > 0]
