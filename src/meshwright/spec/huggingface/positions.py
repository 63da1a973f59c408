"""Rotary positions of a config.json, whichever of the three ways it was written in.

Since release 5 transformers keeps all of it in ``rope_parameters``; before, ``rope_theta`` stood beside ``rope_scaling``.
Precedence and defaults as in transformers 5.24 (``RotaryEmbeddingConfigMixin.convert_rope_params_to_dict``).
"""

from __future__ import annotations

from meshwright.spec.huggingface.config import Config
from meshwright.spec.model import Rope
from meshwright.spec.rope_scaling import ROPE_TYPES, Scaling, read_scaling
from meshwright.spec.tables import Table

__all__ = ["read_rope"]

_LARGEST_BASE = 1e12
"""Published bases end below 10^10; far above it, frequencies underflow."""


def read_rope(
    config: Config, max_positions: int, rotary_dims: int, *, theta: float = 10_000.0, interleaved: bool = False, absent: Scaling = ()
) -> Rope:
    """Base and scaling of the rotary positions.

    Args:
        max_positions: ``max_position_embeddings``. rotary_dims: dims of a head that rotate.
        theta: the family's default base. interleaved: pairs are neighbours.
        absent: the family's scaling where the config has neither ``rope_scaling`` nor ``rope_parameters``.
    """
    outer_theta = config.number("rope_theta", None, above=1.0, high=_LARGEST_BASE)
    config.only("partial_rotary_factor", 1, "rotates part of a head, which is not planned yet for this model_type")
    table, empty = _find_table(config)
    if table is None:
        return Rope(theta=theta if outer_theta is None else outer_theta, scaling=() if empty else absent, interleaved=interleaved)
    inner_theta = table.number("rope_theta", None, above=1.0, high=_LARGEST_BASE)
    if inner_theta is not None and outer_theta is not None and inner_theta != outer_theta:
        table.note("rope_theta", f"{outer_theta}, as rope_theta outside", "leave one of them out", "contradicts the outer rope_theta")
    if table.number("partial_rotary_factor", 1.0) != 1.0:
        table.note("partial_rotary_factor", "1.0", problem="rotates part of a head, which is not planned yet for this model_type")
    scaling = read_scaling(table, _read_type(table), max_positions, rotary_dims)
    if table.sound("type", "rope_type"):  # which keys are known depends on the type
        table.refuse_unread()
    return Rope(theta=inner_theta or outer_theta or theta, scaling=scaling, interleaved=interleaved)


def _find_table(config: Config) -> tuple[Table | None, bool]:
    """The object that holds the scaling, and whether an empty one stands there instead."""
    tables = {key: table for key in ("rope_scaling", "rope_parameters") if (table := config.sub_table(key)) is not None}
    full = {key: table for key, table in tables.items() if table.values}
    if len(full) == 2 and full["rope_scaling"].values != full["rope_parameters"].values:
        config.note("rope_scaling", "what rope_parameters says", "leave one of them out", "contradicts rope_parameters")
    table = full.get("rope_scaling") or full.get("rope_parameters")
    return table, table is None and "rope_parameters" in tables


def _read_type(table: Table) -> str:
    old = table.choice("type", ROPE_TYPES, "default")
    new = table.choice("rope_type", ROPE_TYPES, old)
    if "type" in table and "rope_type" in table and old != new and table.sound("type", "rope_type"):
        table.note("type", f"{new}, as rope_type", "leave one of them out", "contradicts rope_type")
    return new
