"""Which tokens of a sequence a cp rank holds, by the layout's cp kind; the tp ranks of sequence parallelism cut that further.

ring, ulysses: one contiguous chunk. zigzag, allgather: chunks r and 2n-1-r of 2n (Llama 3, arXiv 2407.21783, section
3.3.2), so that every rank has early and late tokens. striped: every n-th token (Brandon et al., arXiv 2311.09431, section
3). usp: zigzag over the ring ranks, and the ulysses ranks, innermost, cut a ring rank's tokens into contiguous parts (Fang
and Zhao, arXiv 2405.07719).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from meshwright.spec.layout import Layout


@dataclass(frozen=True)
class Positions:
    """Global positions of some tokens, in the order in which they are held.

    As numpy, so that what depends on them (which blocks meet, which are full) is known without looking into a tensor.
    """

    places: np.ndarray

    @cached_property
    def tensor(self) -> Tensor:
        """int64 [S]."""
        return torch.from_numpy(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: slice) -> Positions:
        return Positions(self.places[rows])

    def tolist(self) -> list[int]:
        return [int(place) for place in self.places]


def held_positions(layout: Layout, cp_rank: int, seq: int) -> Positions:
    """The [S/cp] tokens of a cp rank. Raises ValueError as ring_positions."""
    inner = layout.ulysses if layout.cp_kind == "usp" else 1
    held = ring_positions(layout.cp_kind, layout.cp // inner, cp_rank // inner, seq)
    size = len(held) // inner
    return held[cp_rank % inner * size : (cp_rank % inner + 1) * size]


def ring_positions(kind: str, ranks: int, rank: int, seq: int) -> Positions:
    """The [S/ranks] tokens of one rank of a ring (or of the whole cp group where nothing is nested).

    Raises:
        ValueError: the sequence does not divide into the kind's chunks.
    """
    whole = np.arange(seq)
    if ranks == 1:
        return Positions(whole)
    chunks = {"ring": ranks, "ulysses": ranks, "striped": ranks}.get(kind, 2 * ranks)
    if seq % chunks:
        raise ValueError(f"a sequence of {seq} tokens does not divide into the {chunks} chunks of cp={ranks}:{kind}")
    if kind == "striped":
        return Positions(whole[rank::ranks].copy())
    parts = np.split(whole, chunks)
    return Positions(parts[rank] if chunks == ranks else np.concatenate((parts[rank], parts[chunks - 1 - rank])))


def take(x: Tensor, positions: Positions, dim: int = 1) -> Tensor:
    """The tokens at ``positions`` of a whole x: inputs, labels (shifted before the cut), anything with a sequence dim."""
    return x.index_select(dim, positions.tensor.to(x.device))
