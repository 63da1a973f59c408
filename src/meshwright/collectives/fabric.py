"""The groups of a layout on a cluster's tiers, each worked out once and only when a price asks for it."""

from __future__ import annotations

from typing import Any

from meshwright.arithmetic import Num, is_array
from meshwright.collectives.experts.price import fused_line
from meshwright.collectives.line import Line, fastest_s
from meshwright.collectives.price import Group, price_lines
from meshwright.mesh import legs, members_per_unit
from meshwright.spec.cluster import Cluster
from meshwright.spec.model import Moe


class Fabric:
    """Prices collectives of one layout, or of a column of layouts, on one cluster."""

    def __init__(self, layout: Any, cluster: Cluster, num_kv_heads: int) -> None:
        self.layout, self.cluster, self._kv_heads = layout, cluster, num_kv_heads
        self._world = layout.world_size
        self._groups: dict[str, Group] = {}
        self._lines: dict[tuple[str, str], tuple[Line, ...]] = {}
        self._seconds: dict[tuple[str, str, Num], Num] = {}

    def group(self, axis: str) -> Group:
        """The shape of the groups of ``axis``."""
        if axis not in self._groups:
            found = [leg for leg in legs(self.layout, axis, self._kv_heads) if not (isinstance(leg.degree, int) and leg.degree == 1)]
            ranks: Num = 1
            for leg in found:
                ranks = ranks * leg.degree
            inner = [members_per_unit(found, self._world, tier.size) for tier in self.cluster.tiers[:-1]]
            self._groups[axis] = Group(ranks, (*inner, ranks))
        return self._groups[axis]

    def seconds(self, op: str, axis: str, payload_bytes: Num) -> Num:
        """Seconds of one call of ``op`` over ``axis``."""
        if is_array(payload_bytes):
            return fastest_s(self._priced(op, axis), payload_bytes)
        key = op, axis, payload_bytes
        if key not in self._seconds:
            self._seconds[key] = fastest_s(self._priced(op, axis), payload_bytes)
        return self._seconds[key]

    def fused_s(self, moe: Moe, axis: str, payload_bytes: Num) -> Num:
        """Seconds of a dispatch or combine that sends one copy of a token to each node; payload as in the flat exchange."""
        key = "fused", axis
        if key not in self._lines:
            self._lines[key] = (fused_line(moe, self.group(axis), self.cluster.tiers),)
        return fastest_s(self._lines[key], payload_bytes)

    def _priced(self, op: str, axis: str) -> tuple[Line, ...]:
        if (op, axis) not in self._lines:
            self._lines[op, axis] = price_lines(op, self.group(axis), self.cluster.tiers)
        return self._lines[op, axis]

    def tier(self, axis: str) -> str:
        """Name of the outermost tier that the groups of ``axis`` span (for one layout)."""
        members = self.group(axis).members
        return next((tier.name for tier, count in zip(self.cluster.tiers, members, strict=True) if count == members[-1]), "")
