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
