"""Dropout whose mask is a function of (seed, step, layer, site, global row, global column) and of nothing else.

So one device and any number of ranks drop the same elements, whatever part of a tensor a rank holds and in which order it computes, and
recomputation needs no saved random state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Site = Literal["embedding", "attention.core", "attention.out", "mlp.down"]
SITES: tuple[Site, ...] = ("embedding", "attention.core", "attention.out", "mlp.down")
"""Where GPT-2 and Megatron-LM drop: embeddings, attention probabilities, and both blocks' outputs before the residual sum."""

_BITS_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Dropout:
    """One dropout layer, once it is bound to a site.

    Attributes:
        rate: probability that an element is dropped. seed, step: of the run.
        key: of layer and site. rows, columns: global index of each element, int64, broadcastable to the tensor.
    """

    rate: float
    seed: int
    step: int
    key: int = 0
    rows: Tensor | None = None
    columns: Tensor | None = None

    def at(self, layer: int, site: Site, rows: Tensor, columns: Tensor) -> Dropout:
        """The same dropout for one site of one layer (-1: the embedding) and these elements."""
        key = self.seed
        for part in (self.step, layer, SITES.index(site)):
            key = _mixed_number((key + _GOLDEN * (part + 2)) & _BITS_64)
        return replace(self, key=key, rows=rows, columns=columns)

    def __call__(self, x: Tensor) -> Tensor:
        assert self.rows is not None and self.columns is not None
        keep = kept(self.key, self.rows, self.columns, self.rate)
        return torch.where(keep, x / (1 - self.rate), 0.0)


def kept(key: int, rows: Tensor, columns: Tensor, rate: float) -> Tensor:
    """bool, of the broadcast shape: which elements stay. Each is an independent uniform number against the rate."""
    bits = _mixed(_mixed(rows + _signed(key)) + columns * _signed(_GOLDEN))
    return (bits >> 11) & ((1 << 53) - 1) >= int(rate * (1 << 53))


def _mixed(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit moves every output bit. int64, wraps around."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _mixed_number(x: int) -> int:
    """The same for one unsigned number."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _BITS_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _BITS_64
    return x ^ (x >> 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right: torch's own keeps the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(x: int) -> int:
    """The int64 with the same bits."""
    return x - (1 << 64) if x >> 63 else x
