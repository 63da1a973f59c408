"""Tensors and axes as they are printed for one layout: what does not cut anything is left out.

``bf16[B/dp, S/(cp,tp), D]{+tp}`` is ``bf16[B/dp, S, D]`` on a layout with dp alone. The two parts of a context group are called
cp where there is only one of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.mesh import Mesh
from meshwright.notation import Dim, Sharded
from meshwright.spec.model import Model

PAIR_AXES = ("embedding", "mirror")
"""Groups of two stages, which the mesh has no axis for."""


class Shown:
    """Prints the notation of one layout."""

    def __init__(self, layout: Any, model: Model) -> None:
        a = model.attention
        self._layout = layout
        self._mesh = Mesh(layout, kv_heads=a.num_heads if a.mla else a.num_kv_heads)
        self._degrees: dict[str, int] = {}
        self._cut_twice = 1 < layout.ulysses < layout.cp

    def degree(self, axis: str) -> int:
        """Ranks of a group of ``axis``."""
        if axis not in self._degrees:
            self._degrees[axis] = min(2, self._layout.pp) if axis in PAIR_AXES else self._mesh.degree(axis)
        return self._degrees[axis]

    def axis(self, axis: str) -> str:
        """``ring`` and ``ulysses`` are ``cp``, unless cp has both."""
        return "cp" if axis in ("ring", "ulysses") and not self._cut_twice else axis

    def tensor(self, tensor: Sharded) -> str:
        """The notation without axes of one rank."""
        partial = tuple(self.axis(axis) for axis in tensor.partial if self.degree(axis) > 1)
        return str(replace(tensor, dims=tuple(map(self._dim, tensor.dims)), partial=partial))

    def _dim(self, dim: Dim) -> Dim:
        # Without sp the etp ranks hold the same token copies: nothing is gathered, X*etp rows are X.
        letter = dim.letter if self.degree("etp") > 1 and self._layout.sp else dim.letter.removesuffix("*etp")
        return Dim(letter, tuple(self.axis(axis) for axis in dim.axes if self.degree(axis) > 1))
