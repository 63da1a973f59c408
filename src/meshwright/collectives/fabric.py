"""The groups of a layout on a cluster's tiers, each worked out once and only when a price asks for it."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from meshwright.arithmetic import Num, is_array
from meshwright.collectives.experts.price import fused_line
from meshwright.collectives.line import Line, fastest_s
from meshwright.collectives.price import Group, price_lines
from meshwright.mesh import hop_tiers, legs, members_per_unit, strides
from meshwright.spec.cluster import Cluster
from meshwright.spec.model import Moe


class Degrees(NamedTuple):
    """What the shape of a layout's groups depends on (mesh.legs.Degrees)."""

    tp: Num
    cp: Num
    ulysses: Num
    pp: Num
    ep: Num
    etp: Num
    dp_replicate: Num
    dp_shard: Num
    order: str
    world_size: Num


def tier_index(group: Group) -> Num:
    """Index of the outermost tier that a group spans."""
    index: Num = 0
    for members in group.members:
        index = index + (members < group.ranks)
    return index


def shape_of_groups(degrees: Degrees, axis: str, kv_heads: int, sizes: tuple[int | None, ...]) -> Group:
    """The shape of the groups of ``axis`` on tiers whose units have ``sizes`` GPUs."""
    found = [leg for leg in legs(degrees, axis, kv_heads) if not (isinstance(leg.degree, int) and leg.degree == 1)]
    ranks: Num = 1
    for leg in found:
        ranks = ranks * leg.degree
    inner = [members_per_unit(found, degrees.world_size, size) for size in sizes[:-1]]
    return Group(ranks, (*inner, ranks))


# Layouts that differ in other keys have the same groups, and groups of one shape are common to many layouts. For single layouts
# only: columns of them are no keys.
_remembered_shape = lru_cache(maxsize=16384)(shape_of_groups)
_remembered_lines = lru_cache(maxsize=16384)(price_lines)


class Fabric:
    """Prices collectives of one layout, or of a column of layouts, on one cluster."""

    def __init__(self, layout: Any, cluster: Cluster, num_kv_heads: int) -> None:
        self.layout, self.cluster, self._kv_heads = layout, cluster, num_kv_heads
        self._degrees = Degrees(*(getattr(layout, name) for name in Degrees._fields))
        self._sizes = tuple(tier.size for tier in cluster.tiers)
        single = not any(map(is_array, self._degrees))
        self._shape = _remembered_shape if single else shape_of_groups
        self._price = _remembered_lines if single else price_lines
        self._groups: dict[str, Group] = {}
        self._lines: dict[tuple[str, str], tuple[Line, ...]] = {}
        self._seconds: dict[tuple[str, str, Num], Num] = {}

    def group(self, axis: str) -> Group:
        """The shape of the groups of ``axis``."""
        if axis not in self._groups:
            self._groups[axis] = self._shape(self._degrees, axis, self._kv_heads, self._sizes)
        return self._groups[axis]

    def seconds(self, op: str, axis: str, payload_bytes: Num) -> Num:
        """Seconds of one call of ``op`` over ``axis``."""
        if is_array(payload_bytes):
            return fastest_s(self._priced(op, axis), payload_bytes)
        key = op, axis, payload_bytes
        found: Num = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = fastest_s(self._priced(op, axis), payload_bytes)
        return found

    @cached_property
    def hops(self) -> tuple[Num, ...]:
        """For each pipeline place, the index of the tier that a message to the next one crosses; the last is the way back to the first.

        One entry where all are alike and that does not depend on the other degrees, as with pp outermost.
        """
        degrees, pp = self._degrees, int(self._degrees.pp)
        world = degrees.world_size
        if not degrees.order.endswith("pp"):
            return tuple(hop_tiers(strides(degrees)["pp"], pp, world, self._sizes))
        world = int(world[0]) if is_array(world) else world  # a column is of one number of GPUs
        found = tuple(map(int, hop_tiers(world // pp, pp, world, self._sizes)))
        return found if len(set(found)) > 1 else found[:1]

    def hop_s(self, tier: int, payload_bytes: Num) -> Num:
        """Seconds of a message between two ranks that meet in a tier."""
        key = "hop", str(tier)
        if key not in self._lines:
            meet = tuple(2 if index >= tier else 1 for index in range(len(self._sizes)))
            self._lines[key] = self._price("send", Group(2, meet), self.cluster.tiers)
        return fastest_s(self._lines[key], payload_bytes)

    def fused_s(self, moe: Moe, axis: str, payload_bytes: Num) -> Num:
        """Seconds of a dispatch or combine that sends one copy of a token to each node; payload as in the flat exchange."""
        key = "fused", axis
        if key not in self._lines:
            self._lines[key] = (fused_line(moe, self.group(axis), self.cluster.tiers),)
        return fastest_s(self._lines[key], payload_bytes)

    def _priced(self, op: str, axis: str) -> tuple[Line, ...]:
        found = self._lines.get((op, axis))
        if found is None:
            found = self._lines[op, axis] = self._price(op, self.group(axis), self.cluster.tiers)
        return found

    def tier(self, axis: str) -> str:
        """Name of the outermost tier that the groups of ``axis`` span (for one layout)."""
        members = self.group(axis).members
        return next((tier.name for tier, count in zip(self.cluster.tiers, members, strict=True) if count == members[-1]), "")
