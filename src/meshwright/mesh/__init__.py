"""Ranks <-> coordinates, groups, and the network tier that a group spans. Pure integers; knows neither model nor cluster."""

from meshwright.mesh.groups import Groups, Mesh
from meshwright.mesh.legs import AXES, COMPOSITES, EXPERT_AXES, Degrees, Ints, Leg, choose, fold_is_regular, legs, strides
from meshwright.mesh.tiers import hop_tiers, members_per_unit, tier_of_legs, tier_spanned

__all__ = [
    "AXES",
    "COMPOSITES",
    "EXPERT_AXES",
    "Degrees",
    "Groups",
    "Ints",
    "Leg",
    "Mesh",
    "choose",
    "fold_is_regular",
    "hop_tiers",
    "legs",
    "members_per_unit",
    "strides",
    "tier_of_legs",
    "tier_spanned",
]
