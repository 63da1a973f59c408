"""Seconds of one algorithm, read off its step list: what the price of a collective is made of, and why one wins.

Bytes: each step takes as long as the slowest tier needs for what its busiest port carries, and steps follow one another.
Into tier i a unit of c_{i-1} ranks has c_{i-1} adapters, and the list is run by that many lanes at once, each starting at
another local rank, so that the unit's traffic spreads over all of them (NCCL's channels); not where everything passes one
root. Latency: the longest chain of messages that wait for one another, each as late as its tier's latency, while a rank
that goes on to its next step waits for the innermost tier's latency only (LogP with gap o = g; Culler et al., "LogP:
towards a realistic model of parallel computation", PPoPP 1993). Rates and start-up are those of ``price.py``.

The result is a straight line in the payload, so that crossovers are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwright.arithmetic import Num
from meshwright.collectives.algorithms import Algorithm, StepList
from meshwright.collectives.algorithms.steplist import Ints
from meshwright.collectives.price import IN_SWITCH, IN_SWITCH_LEAST_RANKS, START_S, Group, _rate
from meshwright.mesh import Leg, members_per_unit
from meshwright.spec.cluster import Cluster, Tier

PIECES = (1, 4, 16, 64)
"""Into how many pieces a pipelined algorithm may cut its payload."""


@dataclass(frozen=True)
class Line:
    """time_s = latency_s + payload_bytes * s_per_byte, of one step list of ``name`` with ``steps`` steps."""

    name: str
    steps: int
    latency_s: float
    s_per_byte: float

    def time_s(self, payload_bytes: Num) -> Num:
        """Seconds of one call."""
        return self.latency_s + payload_bytes * self.s_per_byte


def packed_group(ranks: int, cluster: Cluster) -> Group:
    """The shape of a group of neighbouring ranks; a number that does not fill its units is priced as smaller, full ones."""
    inner = [members_per_unit([Leg(1, ranks)], ranks, tier.size) for tier in cluster.tiers[:-1]]
    return Group(ranks, (*inner, ranks))


def lines(algorithm: Algorithm, ranks: int, cluster: Cluster) -> tuple[Line, ...]:
    """The lines of an algorithm on a packed group; several where it can be pipelined more or less finely."""
    lists = [algorithm.build(ranks)] if algorithm.pipelined is None else [algorithm.pipelined(ranks, pieces) for pieces in PIECES]
    group = packed_group(ranks, cluster)
    return tuple(line(algorithm.name, steps, group, cluster.tiers, not algorithm.one_root) for steps in lists)


def line(name: str, steps: StepList, group: Group, tiers: Sequence[Tier], lanes: bool) -> Line:
    """The line of one step list; ``group.members`` are the ranks in one unit of each tier, each dividing the next."""
    if not steps.num_steps:
        return Line(name, 0, 0.0, 0.0)
    hop_s = np.zeros(len(steps))
    seconds = np.zeros(steps.num_steps)
    open_rows = np.ones(len(steps), dtype=np.bool_)
    below = 1
    for index, (tier, members) in enumerate(zip(tiers, group.members, strict=True)):
        inside = open_rows & (steps.sender // members == steps.receiver // members)
        open_rows &= ~inside
        hop_s[inside] = tier.latency_s
        load = _busiest(steps, inside, below if lanes else 1) / (below if lanes else 1)
        seconds = np.maximum(seconds, load * steps.chunk_bytes(1.0) / _rate(tier, index, steps.op, members // below - 1))
        below = members
    return Line(name, steps.num_steps, START_S + _chain_s(steps, hop_s, tiers[0].latency_s), float(seconds.sum()))


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


def in_switch_line(ranks: int, cluster: Cluster) -> Line | None:
    """An all_reduce that the switch adds up (NVLS): each rank sends its tensor once; None where the price does not use it."""
    tier = cluster.tiers[0]
    if not tier.in_network_reduction or ranks < IN_SWITCH_LEAST_RANKS or packed_group(ranks, cluster).members[0] < ranks:
        return None
    return Line("in_switch", 1, START_S + 4 * tier.latency_s, 1 / (tier.loaded_bandwidth_bytes_per_s * IN_SWITCH))


def best_line(found: Iterable[Line], payload_bytes: float) -> Line:
    """The fastest for one size; the first of equals."""
    return min(found, key=lambda candidate: candidate.time_s(payload_bytes))


@dataclass(frozen=True)
class Crossover:
    """At ``payload_bytes`` and above, ``to`` is faster than ``from_``, which was the fastest below."""

    from_: str
    to: str
    payload_bytes: float


def crossovers(found: Sequence[Line], smallest: float, largest: float) -> tuple[Crossover, ...]:
    """Where the fastest algorithm changes between two sizes, in order; follows the lower envelope of the lines."""
    at, now = smallest, best_line(found, smallest)
    changes: list[Crossover] = []
    while True:
        later = [
            ((other.latency_s - now.latency_s) / (now.s_per_byte - other.s_per_byte), other)
            for other in found
            if other.s_per_byte < now.s_per_byte
        ]
        ahead = [(size, other) for size, other in later if at < size <= largest]
        if not ahead:
            return tuple(changes)
        at, following = min(ahead, key=lambda change: (change[0], change[1].s_per_byte))
        if following.name != now.name:
            changes.append(Crossover(now.name, following.name, at))
        now = following
