"""The keys that stretch rotary positions to longer sequences, as Hugging Face names them.

Which keys each type takes, and their defaults, are those of transformers 5.24 (modeling_rope_utils.py).
"""

from __future__ import annotations

from meshwright.spec.tables import LARGEST_SIZE, Table

__all__ = ["ROPE_TYPES", "Scaling", "read_scaling"]

Scaling = tuple[tuple[str, float | str | bool], ...]

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
"""linear, dynamic: position interpolation and NTK scaling; yarn: arXiv 2309.00071; llama3: Llama 3.1's (arXiv 2407.21783)."""

_NEEDED = {"default": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": ("factor",),
           "llama3": ("factor", "low_freq_factor", "high_freq_factor")}  # fmt: skip
_OPTIONAL = {"yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")}
_SMALLEST = 1e-6
"""Below it, and above 10^8, the logarithms of a scaling overflow."""
_REMEMBER_LENGTH = ("yarn", "llama3")


def read_scaling(table: Table, rope_type: str, max_positions: int, rotary_dims: int) -> Scaling:
    """The keys of one scaling as sorted pairs with ``rope_type``; () for the default type.

    Args:
        table: ``rope_scaling``, ``rope_parameters`` or ``[rope.scaling]``. Its other keys are the caller's to read.
        rope_type: one of ROPE_TYPES.
        max_positions: the default of ``original_max_position_embeddings``.
        rotary_dims: the dims of a head that rotate.
    """
    if rope_type == "default":
        return ()
    found: dict[str, float | str | bool] = {"rope_type": rope_type}
    for key in _NEEDED[rope_type]:
        found[key] = table.number(key, low=1.0 if key == "factor" else _SMALLEST, high=LARGEST_SIZE)
    for key in _OPTIONAL.get(rope_type, ()):
        low = 0.0 if key.startswith("mscale") else _SMALLEST
        if (value := table.number(key, None, low=low, high=LARGEST_SIZE)) is not None:
            found[key] = value
    if rope_type in _REMEMBER_LENGTH:
        found["original_max_position_embeddings"] = table.integer("original_max_position_embeddings", max_positions)
    if rope_type == "yarn" and (truncate := table.flag("truncate", None)) is not None:
        found["truncate"] = truncate
    _check(table, found, rotary_dims)
    return tuple(sorted(found.items()))


def _check(table: Table, found: dict[str, float | str | bool], rotary_dims: int) -> None:
    if found["rope_type"] == "llama3" and table.sound("low_freq_factor", "high_freq_factor"):
        low, high = found["low_freq_factor"], found["high_freq_factor"]
        if float(high) <= float(low):
            table.note("high_freq_factor", f"above low_freq_factor = {low}", problem="leaves no range to interpolate in")
    if found["rope_type"] == "dynamic" and rotary_dims <= 2:
        table.note("rope_type", "another type", problem="needs more than two rotating dims")
