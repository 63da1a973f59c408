"""Which ranks form which groups, the tier each group spans, and a picture of the nodes: the content of ``meshwright ranks``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshwright.mesh import Groups, Leg, Mesh, tier_of_legs
from meshwright.spec.cluster import Cluster, Tier
from meshwright.spec.layout import TWO_CHUNK_SCHEDULES, Layout
from meshwright.spec.model import Model
from meshwright.spec.rules import LayoutWarning
from meshwright.spec.rules.rule import kv_heads

SHOWN_GROUPS = 4
"""Groups of an axis that the text lists; the stride says the rest."""

SHOWN_RANKS = 8
"""Ranks of a group that the text lists."""

PICTURED_RANKS = 128
"""Worlds up to this size get a picture of their nodes."""

PICTURE_WIDTH = 120
"""Columns that a line of the picture may have."""

PLACES = {"tp": "t", "cp": "c", "dp_shard": "s", "dp_replicate": "r", "pp": "p"}
"""One letter for the place on each axis, in the order a cell shows them."""


@dataclass(frozen=True, kw_only=True)
class AxisGroups:
    """The groups of one axis.

    Attributes:
        axis: its name; a composite such as ``dp``, ``fsdp`` or ``dp_cp`` where a collective runs over several axes.
        groups: all of them, made when asked for. legs: strides and degrees of a group, innermost first.
        tier: the network tier that a group spans. meaning: what its ranks do together.
    """

    axis: str
    groups: Groups
    legs: tuple[Leg, ...]
    tier: Tier
    meaning: str

    @property
    def degree(self) -> int:
        """Ranks in a group."""
        return prod(leg.degree for leg in self.legs)

    @property
    def pattern(self) -> str:
        """``8 at stride 1``; ``4 at stride 2, then 2 at stride 16`` for a group with a gap."""
        return ", then ".join(f"{leg.degree} at stride {leg.stride}" for leg in self.legs)

    @property
    def first_groups(self) -> str:
        """``[0 8] [1 9] ... 32 groups``."""
        words = [f"[{_ranks(group)}]" for group in self.groups[:SHOWN_GROUPS]]
        rest = len(self.groups) - len(words)
        return " ".join(words) + (f" ... {len(self.groups)} groups" if rest > 0 else "")


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """Every axis of a layout that has more than one rank."""

    layout: Layout
    world_size: int
    gpus_per_node: int
    axes: tuple[AxisGroups, ...]
    warnings: tuple[LayoutWarning, ...]

    def as_json(self) -> dict[str, object]:
        """All groups of all axes: ``{"axes": {axis: [[ranks]]}, "tiers": {axis: tier}, "warnings": [...]}``."""
        return {
            "axes": {axis.axis: [list(group) for group in axis.groups] for axis in self.axes},
            "tiers": {axis.axis: axis.tier.name for axis in self.axes},
            "warnings": [warning.as_json() for warning in self.warnings],
        }

    def rows(self) -> list[tuple[str, int, str, str, str, str]]:
        """For a table: axis, degree, tier, stride pattern, first groups, meaning. ``dp`` only where it is more than one of its parts."""
        parts = [axis.legs for axis in self.axes if axis.axis != "dp"]
        shown = [axis for axis in self.axes if axis.axis != "dp" or axis.legs not in parts]
        return [(axis.axis, axis.degree, axis.tier.name, axis.pattern, axis.first_groups, axis.meaning) for axis in shown]

    def picture(self) -> list[str]:
        """One cell per GPU: rank and places, ``12 t4 s1``; one line per node, or several of equal length where one would be too
        long. [] for a world too large to look at."""
        if self.world_size > PICTURED_RANKS:
            return []
        mesh = Mesh(self.layout)
        used = [axis for axis in PLACES if getattr(self.layout, axis) > 1]
        cells = [_cell(mesh, rank, used) for rank in range(self.world_size)]
        width = max(map(len, cells))
        per_line = self.gpus_per_node if self.gpus_per_node > 1 else min(self.world_size, SHOWN_RANKS)
        label = len(f"node {(self.world_size - 1) // per_line}") + 2
        fits = [n for n in range(1, per_line + 1) if per_line % n == 0 and label + n * (width + 3) - 3 <= PICTURE_WIDTH]
        across = max(fits, default=1)
        lines = []
        for start in range(0, self.world_size, across):
            name = f"node {start // per_line}" if start % per_line == 0 else ""
            lines.append(f"{name:<{label}}" + " | ".join(cell.ljust(width) for cell in cells[start : start + across]))
        return lines

    def legend(self) -> str:
        """What the letters of the picture stand for."""
        used = [f"{letter} = {axis}" for axis, letter in PLACES.items() if getattr(self.layout, axis) > 1]
        return "rank, then its place: " + ", ".join(used) if used else "one rank"


def explain_ranks(model: Model, layout: Layout, cluster: Cluster, warnings: Sequence[LayoutWarning] = ()) -> RankReport:
    """The groups of every axis in use.

    Args:
        model: decides whether there are expert groups, copies of kv heads and a tied embedding.
        layout: legal for this model (spec/rules/).
        cluster: its tiers.
        warnings: what ``check`` said.
    """
    mesh = Mesh(layout, kv_heads=kv_heads(model))
    found = [_axis(mesh, cluster, axis, meaning) for axis, meaning in _axes_in_use(model, layout).items() if mesh.degree(axis) > 1]
    if layout.pp > 1 and model.tied_embeddings and layout.schedule not in (*TWO_CHUNK_SCHEDULES, "dualpipe"):
        found.append(_end_stages(mesh, cluster))
    return RankReport(
        layout=layout,
        world_size=mesh.world_size,
        gpus_per_node=cluster.gpus_per_node,
        axes=tuple(found),
        warnings=tuple(warnings),
    )


def _axes_in_use(model: Model, layout: Layout) -> dict[str, str]:
    """Axes that may have groups, with what each is for."""
    axes = {
        "tp": "share every layer's matrices",
        "kv": "hold copies of the same kv heads and sum their gradients",
        "cp": "share each sequence",
        "dp_shard": "hold different sequences" + ("; shard the state" if layout.zero else ""),
        "dp_replicate": "hold different sequences and the same state",
        "dp": "hold different sequences",
        "pp": "hold different layers",
    }
    if layout.cp_kind == "usp":
        axes |= {"ulysses": "swap sequence for heads", "ring": "pass keys and values round"}
    if layout.cp > 1 and layout.dp_shard > 1:
        axes["fsdp"] = f"shard the state (zero={layout.zero})" if layout.zero else "hold the same parameters within a replica"
    if layout.cp > 1 and layout.dp > 1:
        axes["dp_cp"] = "sum gradients"
    if model.moe is not None:
        axes |= {
            "etp": "share each expert's matrices",
            "ep": "hold different experts, exchange tokens",
            "edp": "hold the same experts within a replica",
        }
    return axes


def _axis(mesh: Mesh, cluster: Cluster, axis: str, meaning: str) -> AxisGroups:
    legs = mesh.legs(axis)
    return AxisGroups(axis=axis, groups=mesh.groups(axis), legs=legs, tier=_tier(mesh, cluster, axis), meaning=meaning)


def _end_stages(mesh: Mesh, cluster: Cluster) -> AxisGroups:
    stages = mesh.degree("pp")
    return AxisGroups(
        axis="embedding",
        groups=mesh.end_stages(),
        legs=(Leg(mesh.stride("pp") * (stages - 1), 2),),
        tier=_tier(mesh, cluster, "pp"),
        meaning="sum gradients of the tied embedding",
    )


def _tier(mesh: Mesh, cluster: Cluster, axis: str) -> Tier:
    sizes = tuple(tier.size for tier in cluster.tiers)
    return cluster.tiers[int(tier_of_legs(mesh.legs(axis), mesh.world_size, sizes))]


def _cell(mesh: Mesh, rank: int, axes: Sequence[str]) -> str:
    places = mesh.coordinates(rank)
    return f"{rank:>{len(str(mesh.world_size - 1))}} " + " ".join(f"{PLACES[axis]}{places[axis]}" for axis in axes)


def _ranks(group: Sequence[int]) -> str:
    shown = [str(rank) for rank in group[: SHOWN_RANKS - 1]]
    if len(group) > SHOWN_RANKS:
        return " ".join([*shown, "...", str(group[-1])])
    return " ".join(map(str, group))
