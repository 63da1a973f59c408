"""Which tokens of a sequence a cp rank holds, by the layout's cp kind; the tp ranks of sequence parallelism cut that further.

ring, ulysses: one contiguous chunk. zigzag, allgather: chunks r and 2n-1-r of 2n (Llama 3, arXiv 2407.21783, section
3.3.2), so that every rank has early and late tokens. striped: every n-th token (Brandon et al., arXiv 2311.09431, section
3). usp: zigzag over the ring ranks, and the ulysses ranks, innermost, cut a ring rank's tokens into contiguous parts (Fang
and Zhao, arXiv 2405.07719).
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.spec.layout import Layout


def held_positions(layout: Layout, cp_rank: int, seq: int) -> Tensor:
    """Global positions int64 [S/cp] of the tokens of a cp rank, in the order in which it holds them."""
    inner = layout.ulysses if layout.cp_kind == "usp" else 1
    held = ring_positions(layout.cp_kind, layout.cp // inner, cp_rank // inner, seq)
    if inner == 1:
        return held
    return held.chunk(inner)[cp_rank % inner]


def ring_positions(kind: str, ranks: int, rank: int, seq: int) -> Tensor:
    """Global positions int64 [S/ranks] of one rank of a ring (or of the whole cp group where nothing is nested).

    Raises:
        ValueError: the sequence does not divide into the kind's chunks.
    """
    chunks = {"ring": ranks, "ulysses": ranks, "striped": ranks}.get(kind, 2 * ranks)
    if ranks == 1:
        return torch.arange(seq)
    if seq % chunks:
        raise ValueError(f"a sequence of {seq} tokens does not divide into the {chunks} chunks of cp={ranks}:{kind}")
    if kind == "striped":
        return torch.arange(rank, seq, ranks)
    parts = torch.arange(seq).chunk(chunks)
    return parts[rank] if chunks == ranks else torch.cat((parts[rank], parts[chunks - 1 - rank]))


def take(x: Tensor, positions: Tensor, dim: int = 1) -> Tensor:
    """The tokens at ``positions`` of a whole x: inputs, labels (shifted before the cut), anything with a sequence dim."""
    return x.index_select(dim, positions.to(x.device))
