"""Which tier of the network a group spans, and how many of its members share a unit of each tier.

Ranks fill the units of a tier one after another: rank r sits in unit r // size. A group is given by its legs
(legs.py). Everything here takes ints or numpy integer arrays for strides, degrees and world sizes; tier sizes are
plain ints, innermost first, None for a tier that holds any number of GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshwright.mesh.legs import Ints, Leg, choose


def inside_unit(stride: Ints, degree: Ints, world: Ints, size: int | None) -> Any:
    """Whether each group of ``degree`` ranks at ``stride`` lies within one unit of ``size`` GPUs.

    The groups of an axis tile the world in blocks of stride x degree ranks. If blocks divide the unit none straddles; if they do not, the
    first unit's end cuts a block, and so one of its groups: exact for degrees above 1, unless the whole world is in one unit.
    """
    if size is None:
        return world > 0  # always, in the shape of ``world``
    return (size % (stride * degree) == 0) | (world <= size) | (degree == 1)


def tier_spanned(stride: Ints, degree: Ints, world: Ints, sizes: Sequence[int | None]) -> Ints:
    """Index of the first tier whose units hold the group; the last tier where none does. 0 for a group of one."""
    tier: Ints = 0
    outside: Any = 1
    for size in sizes[:-1]:
        outside = outside * (1 - inside_unit(stride, degree, world, size))
        tier = tier + outside
    return tier


def tier_of_legs(legs: Sequence[Leg], world: Ints, sizes: Sequence[int | None]) -> Ints:
    """Index of the tier that a group with several legs spans: that of its widest leg.

    Each leg's block is a multiple of those inside it, so an outer leg never spans less than an inner one that is longer than 1.
    """
    tier: Ints = 0
    for leg in legs:
        spanned = tier_spanned(leg.stride, leg.degree, world, sizes)
        tier = choose(spanned > tier, spanned, tier)
    return tier


def members_per_unit(legs: Sequence[Leg], world: Ints, size: int | None) -> Ints:
    """How many members of a group share a unit: the largest number into which every group splits evenly.

    For a leg of ``degree`` at ``stride``, runs of g members are blocks of stride x g ranks, which must divide the unit:
    g = gcd(degree, size / stride). Outer legs count only where the inner ones lie inside the unit as a whole. A
    hierarchical collective runs among these first, then across degree / g units.
    """
    members: Ints = 1
    whole: Any = 1
    for leg in legs:
        run = _run_in_unit(leg, world, size)
        members = choose(whole, members * run, members)
        whole = whole * (run == leg.degree)
    return members


def _run_in_unit(leg: Leg, world: Ints, size: int | None) -> Ints:
    if size is None:
        return leg.degree * (world > 0)
    run = choose(size % leg.stride == 0, _gcd(leg.degree, size // leg.stride), 1)
    return choose(world <= size, leg.degree, run)


def _gcd(a: Ints, b: Ints) -> Ints:
    if isinstance(a, int) and isinstance(b, int):
        return math.gcd(a, b)
    import numpy as np

    return np.gcd(a, b)


def hop_tiers(stride: Ints, degree: int, world: Ints, sizes: Sequence[int | None]) -> list[Ints]:
    """For each place of a pipeline, the tier that its message to the next place crosses; the last entry is the way back to the first.

    The widest of all pipelines' where they do not begin at the same place of a unit.
    """
    outside: list[Any] = [1] * degree
    tiers: list[Ints] = [0] * degree
    for size in sizes[:-1]:
        found = [_leaves(place, stride, degree, world, size) for place in range(degree - 1)]
        way_back: Any = 0
        for leaves in found:
            way_back = way_back | leaves
        outside = [before * leaves for before, leaves in zip(outside, [*found, way_back], strict=True)]
        tiers = [tier + leaves for tier, leaves in zip(tiers, outside, strict=True)]
    return tiers


def _leaves(place: int, stride: Ints, degree: int, world: Ints, size: int | None) -> Any:
    """Whether the step of ``stride`` ranks from a place leaves the unit, 1 or 0.

    Pipelines begin at any of ``stride`` neighbouring ranks, and again behind each block of stride x degree ranks. So the step begins
    at any of ``stride`` neighbours, and leaves from one of them if the last can reach the next unit.
    """
    if size is None:
        return 0 * world
    block = stride * degree
    blocks = world // block
    leaves: Any = stride >= size
    for index in range(min(_most(blocks), _most(size // _gcd(block, size)))):
        leaves = leaves | ((index < blocks) & ((index * block + place * stride) % size > size - 2 * stride))
    return leaves * (world > size) * 1


def _most(value: Ints) -> int:
    return value if isinstance(value, int) else int(value.max())
