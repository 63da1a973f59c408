"""The one notation for a sharded tensor: ``bf16[B/dp, S/(cp,tp), D]{+tp}``. It parses and prints.

A dim is a letter (or a product of letters) and the mesh axes that cut it; ``{+tp}`` marks a tensor of which each tp rank
holds one summand. Sizes are not part of it: ledger/sizes.py turns a tensor into local shapes and bytes.

Letters (docs/notation.md): B sequences of a micro-batch over all dp ranks, S sequence, D model, F ffn, N query heads, K kv
heads, H head dim, V vocab, E experts, X token copies that a rank's experts work on, P rows of a flattened parameter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

AXES = ("dp_replicate", "dp_shard", "dp", "fsdp", "cp", "tp", "pp", "ep", "etp", "edp", "kv", "world", "ulysses", "ring")
"""Mesh axes, and the composite ones of mesh.py: dp = both dp axes, fsdp = dp_shard x cp, edp = the fold without ep and etp,
kv = the tp ranks that hold copies of one kv head, ulysses and ring = the two parts of cp."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of a tensor: its letter, and the axes that cut it, slowest first."""

    letter: str
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.axes:
            return self.letter
        return f"{self.letter}/{self.axes[0]}" if len(self.axes) == 1 else f"{self.letter}/({','.join(self.axes)})"


@dataclass(frozen=True, slots=True)
class Sharded:
    """A tensor as the ranks hold it. ``partial`` lists the axes over which it is still to be summed."""

    dtype: str
    dims: tuple[Dim, ...]
    partial: tuple[str, ...] = ()
    dim_texts: tuple[str, ...] = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Worked out once: tensors are keys of caches, and their dims are looked up by text."""
        object.__setattr__(self, "dim_texts", tuple(map(str, self.dims)))
        object.__setattr__(self, "_hash", hash((self.dtype, self.dims, self.partial)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.dim_texts)}]" + "".join(f"{{+{axis}}}" for axis in self.partial)

    def axes_of(self, axis: str) -> int | None:
        """The dim that ``axis`` cuts, or None."""
        return next((index for index, dim in enumerate(self.dims) if axis in dim.axes), None)


_TENSOR = re.compile(r"\s*([a-z][a-z0-9]*)\[([^\[\]]*)\]((?:\{\+[a-z_]+\})*)\s*")
_DIM = re.compile(r"([0-9A-Z][0-9A-Za-z*+]*)(?:/([a-z_]+)|/\(([a-z_]+(?:,[a-z_]+)+)\))?")


@lru_cache(maxsize=4096)
def parse(text: str) -> Sharded:
    """Read the notation.

    Raises:
        ValueError: the text is not of the form, an axis is unknown or cuts two dims.
    """
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a sharded tensor such as bf16[B/dp, S/cp, D]{{+tp}}")
    dims = tuple(_parse_dim(part, text) for part in _split(match[2]))
    partial = tuple(re.findall(r"\{\+([a-z_]+)\}", match[3]))
    used = [axis for dim in dims for axis in dim.axes] + list(partial)
    for axis in used:
        if axis not in AXES:
            raise ValueError(f"unknown axis {axis!r} in {text!r}; one of {' '.join(AXES)}")
        if used.count(axis) > 1:
            raise ValueError(f"axis {axis!r} occurs twice in {text!r}")
    return Sharded(match[1], dims, partial)


def _split(text: str) -> list[str]:
    """Split at the commas outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text)] if text.strip() else []


def _parse_dim(text: str, whole: str) -> Dim:
    match = _DIM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a dim in {whole!r}")
    axes = match[2] or match[3]
    return Dim(match[1], tuple(axes.split(",")) if axes else ())
