"""Ranks, coordinates and groups of one layout.

Groups and the order of their members equal those of Megatron-Core's RankGenerator (megatron/core/parallel_state.py):
members ascend, groups are sorted by their first rank. A group is made when it is asked for, a range where it can be, so
that 100,000 ranks cost nothing until somebody prints them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import overload

from meshwright.mesh.legs import AXES, Degrees, Leg, legs, strides


class Groups(Sequence[Sequence[int]]):
    """All groups of one axis, each made when it is asked for: a range where its ranks are equally spaced, else a tuple.

    Attributes:
        starts: legs of the first ranks of the groups.
        members: the ranks of a group, counted from its first rank.
    """

    def __init__(self, starts: Sequence[Leg], members: Sequence[int]) -> None:
        self.starts = tuple(starts)
        self.members = members

    def __len__(self) -> int:
        return prod(leg.degree for leg in self.starts)

    @overload
    def __getitem__(self, index: int) -> Sequence[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sequence[int]]: ...
    def __getitem__(self, index: int | slice) -> Sequence[int] | list[Sequence[int]]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        rest = range(len(self))[index]
        start = 0
        for leg in self.starts:
            rest, digit = divmod(rest, leg.degree)
            start += digit * leg.stride
        return self.beginning_at(start)

    def beginning_at(self, start: int) -> Sequence[int]:
        """The group whose first rank is ``start``."""
        if isinstance(self.members, range):
            return range(start, start + self.members.stop, self.members.step)
        return tuple(start + member for member in self.members)

    def __iter__(self) -> Iterator[Sequence[int]]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True)
class Mesh:
    """The ranks of one layout. ``kv_heads`` is needed for the axis ``kv`` only.

    >>> mesh = Mesh(Layout(tp=8, dp_shard=2, pp=4))
    >>> mesh.stride("tp"), mesh.stride("dp"), mesh.stride("pp")
    (1, 8, 16)
    >>> mesh.coordinates(27)
    {'tp': 3, 'cp': 0, 'dp_shard': 1, 'dp_replicate': 0, 'pp': 1}
    """

    layout: Degrees
    kv_heads: int | None = None

    @cached_property
    def world_size(self) -> int:
        return prod(getattr(self.layout, axis) for axis in AXES)

    def legs(self, axis: str) -> tuple[Leg, ...]:
        """The legs of ``axis`` that have more than one rank; () for an axis of degree 1."""
        return tuple(leg for leg in legs(self.layout, axis, self.kv_heads) if leg.degree > 1)

    def degree(self, axis: str) -> int:
        """Ranks in one group of ``axis``."""
        return prod(leg.degree for leg in self.legs(axis))

    def stride(self, axis: str) -> int:
        """Distance of neighbours in a group (of the innermost ones, where a composite axis has gaps)."""
        found = self.legs(axis)
        stride: int = found[0].stride if found else legs(self.layout, axis, self.kv_heads)[0].stride
        return stride

    def coordinates(self, rank: int) -> dict[str, int]:
        """The rank's place on each of AXES."""
        step = strides(self.layout)
        return {axis: rank // step[axis] % getattr(self.layout, axis) for axis in AXES}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at a place; axes that are left out count as 0."""
        step = strides(self.layout)
        return sum(step[axis] * place for axis, place in coordinates.items())

    def place(self, rank: int, axis: str) -> int:
        """The rank's place in its group of ``axis``, counted from 0."""
        place, weight = 0, 1
        for leg in self.legs(axis):
            place += weight * (rank // leg.stride % leg.degree)
            weight *= leg.degree
        return place

    def groups(self, axis: str) -> Groups:
        """All groups of ``axis``. They partition the ranks."""
        return Groups(_complement(self.legs(axis), self.world_size), _members(self.legs(axis)))

    def group_of(self, rank: int, axis: str) -> Sequence[int]:
        """The group of ``axis`` that ``rank`` is in."""
        start = rank - sum(rank // leg.stride % leg.degree * leg.stride for leg in self.legs(axis))
        return self.groups(axis).beginning_at(start)

    def end_stages(self) -> Groups:
        """The first and the last rank of every pipeline, which share a tied embedding. They span the tier of pp."""
        stages = _members(self.legs("pp"))
        ends = range(0, stages[-1] + 1, stages[-1]) if len(stages) > 1 else stages
        return Groups(_complement(self.legs("pp"), self.world_size), ends)

    def mirrors(self) -> list[Sequence[int]]:
        """DualPipe's pairs: ranks of stages i and p-1-i hold the same two stages and sum their gradients."""
        pairs: list[Sequence[int]] = []
        for stages in self.groups("pp"):
            pairs += [(stages[i], stages[-1 - i]) for i in range(len(stages) // 2)]
        return pairs


def _members(parts: Sequence[Leg]) -> Sequence[int]:
    """The ranks that ``parts`` reach from rank 0, ascending."""
    if not parts:
        return range(1)
    if len(parts) == 1:
        return range(0, parts[0].stride * parts[0].degree, parts[0].stride)
    members = [0]
    for leg in parts:
        members = [member + leg.stride * place for place in range(leg.degree) for member in members]
    return tuple(members)


def _complement(parts: Sequence[Leg], world_size: int) -> tuple[Leg, ...]:
    """The digits that ``parts`` leave: legs of the first ranks of all groups, innermost first."""
    gaps: list[Leg] = []
    end = 1
    for leg in parts:
        gaps.append(Leg(end, leg.stride // end))
        end = leg.stride * leg.degree
    gaps.append(Leg(end, world_size // end))
    return tuple(gaps)
