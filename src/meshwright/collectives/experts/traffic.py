"""What dispatch sends over each tier: bytes of the busiest adapter, and of the average one.

The ranks of an expert group are numbered as they lie on the tiers: rank g is in unit g // c_i of tier i, and its place in the
node is g % c_0. Three ways to send a token to its experts:

- ``flat``: one copy for each expert, straight to its rank. A copy for another place of another node passes the node's own
  links first, to the neighbour on that rail (NCCL's PXN).
- ``hierarchical``: the same bytes in two exchanges one after the other, inside the node by place, then between nodes by rail.
- ``fused``: one copy for each *node* with experts of the token, to the rank of the same place there, which hands it on over
  the node's links to each rank that holds some (DeepSeek-V3, arXiv 2412.19437, section 3.2.2; DeepEP).

Combine is the mirror: what came in goes out, with its own bytes per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.collectives.experts.routing import Routing
from meshwright.collectives.price import Group

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WAYS = ("flat", "hierarchical", "fused")


@dataclass(frozen=True)
class Traffic:
    """Tokens' copies over each tier, counted in copies of one token's hidden vector.

    Attributes:
        busiest: for each tier the most that one rank sends or receives; mean: the same of the average rank.
        received: int[ranks], copies for the experts of each rank, those from its own tokens too (one for each expert).
    """

    way: str
    busiest: tuple[float, ...]
    mean: tuple[float, ...]
    received: Ints

    @property
    def imbalance(self) -> float:
        """Copies that the busiest rank's experts work on, over the average: its compute takes that much longer."""
        return float(self.received.max() / self.received.mean())

    @property
    def tail(self) -> float:
        """The busiest adapter over the average one, in the tier where that is worst."""
        return max((b / m for b, m in zip(self.busiest, self.mean, strict=True) if m > 0), default=1.0)


def contiguous(num_experts: int, ranks: int) -> Ints:
    """int[E]: the rank of each expert when neighbours share a rank, as frameworks place them."""
    return np.arange(num_experts) // (num_experts // ranks)


def traffic(routing: Routing, rank_of: Ints, group: Group, way: str) -> Traffic:
    """Count one dispatch.

    Args:
        rank_of: int[E], the rank in the group that holds each expert.
        group: one layout's, ``ranks`` equal to the routing's.

    Raises KeyError: no such way.
    """
    sent = {"flat": _flat, "hierarchical": _flat, "fused": _fused}[way](routing, rank_of, group)
    busiest, mean = [], []
    for out, back in sent:
        busiest.append(float(max(out.max(), back.max())))
        mean.append(float(out.mean()))
    copies = np.bincount(rank_of[routing.chosen].ravel(), minlength=group.ranks)
    return Traffic(way, tuple(busiest), tuple(mean), copies)


def _pairs(routing: Routing, unit_of: Ints, units: int) -> Ints:
    """int[ranks, units]: copies from each rank for the experts of each unit."""
    ranks = routing.chosen.shape[0]
    source = np.arange(ranks)[:, None, None]
    return np.bincount((source * units + unit_of[routing.chosen]).ravel(), minlength=ranks * units).reshape(ranks, units)


def _distinct(routing: Routing, unit_of: Ints, units: int) -> NDArray[np.bool_]:
    """bool[ranks, tokens, units]: whether a token has an expert in the unit."""
    ranks, tokens, _ = routing.chosen.shape
    found = np.zeros((ranks, tokens, units), dtype=bool)
    np.put_along_axis(found, unit_of[routing.chosen], True, axis=2)
    return found


def _flat(routing: Routing, rank_of: Ints, group: Group) -> list[tuple[Floats, Floats]]:
    """(sent, received) of each rank over each tier; adapters by rail: the sender's node's one at the receiver's place."""
    n, members = group.ranks, group.members
    place = np.arange(n) % members[0]
    copies = _pairs(routing, rank_of, n)
    away = copies * (place[:, None] != place[None, :])
    found: list[tuple[Floats, Floats]] = [_handed_over(away, members[0])]
    for below in members[:-1]:
        unit = np.arange(n) // below
        leaving = copies * (unit[:, None] != unit[None, :])
        found.append((_by_rail(leaving, members[0]), leaving.sum(axis=0).astype(np.float64)))
    return found


def _handed_over(away: Ints, inner: int) -> tuple[Floats, Floats]:
    """Over the node's own links: from each rank, and to the neighbour at the receiver's place."""
    n = len(away)
    by_place = away.reshape(n, n // inner, inner).sum(axis=1)  # from rank, for place
    received = by_place.reshape(n // inner, inner, inner).sum(axis=1).reshape(n)  # by the rank of the sender's node at that place
    return away.sum(axis=1).astype(np.float64), received.astype(np.float64)


def _by_rail(leaving: Ints, inner: int) -> Floats:
    """Sent by each adapter: all of its node's copies for ranks at its place."""
    n = len(leaving)
    by_place = leaving.reshape(n, n // inner, inner).sum(axis=1)
    found: Floats = by_place.reshape(n // inner, inner, inner).sum(axis=1).reshape(n).astype(np.float64)
    return found


def _fused(routing: Routing, rank_of: Ints, group: Group) -> list[tuple[Floats, Floats]]:
    n, members = group.ranks, group.members
    inner = members[0]
    at_rank = _distinct(routing, rank_of, n)
    at_node = at_rank.reshape(*at_rank.shape[:2], n // inner, inner).any(axis=3)
    to_node = at_node.sum(axis=1)  # [source rank, node]
    found: list[tuple[Floats, Floats]] = [_handed_on(at_rank, inner)]
    node, place = np.arange(n) // inner, np.arange(n) % inner
    for below in members[:-1]:
        outside = (np.arange(n) // below)[:, None] != (np.arange(n // inner) * inner // below)[None, :]
        leaving = to_node * outside
        received = leaving.reshape(n // inner, inner, n // inner).sum(axis=0)  # [place, node]
        found.append((leaving.sum(axis=1).astype(np.float64), received[place, node].astype(np.float64)))
    return found


def _handed_on(at_rank: NDArray[np.bool_], inner: int) -> tuple[Floats, Floats]:
    """Over the node's own links: a token that arrived at (node, its source's place) goes on to each other rank that wants it."""
    n = at_rank.shape[0]
    wanted = at_rank.sum(axis=1).reshape(n // inner, inner, n // inner, inner)  # [source node, source place, node, place]
    wanted = wanted.sum(axis=0).transpose(1, 0, 2).copy()  # [node, place it arrives at, place that wants it]
    wanted[:, np.arange(inner), np.arange(inner)] = 0
    return wanted.sum(axis=2).reshape(n).astype(np.float64), wanted.sum(axis=1).reshape(n).astype(np.float64)
