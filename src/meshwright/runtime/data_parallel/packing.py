"""Parameters cut on dim 0 over n ranks, each padded to equal parts, and packed into one flat tensor: FSDP2's own layout.

Rank r has rows r c to (r+1) c of a parameter, c = ceil(rows / n); the last ranks may have fewer, or none. 50 x 8 on 3 ranks takes 51 rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def chunk_rows(rows: int, ranks: int) -> int:
    """Rows of one rank, padding included."""
    return -(-rows // ranks)


def own_rows(rows: int, ranks: int, rank: int) -> slice:
    """The rows that a rank has."""
    size = chunk_rows(rows, ranks)
    return slice(min(rank * size, rows), min((rank + 1) * size, rows))


def shard_numel(tensors: Sequence[Tensor], ranks: int) -> int:
    """Elements of one rank's packed shard, padding included."""
    return sum(chunk_rows(tensor.shape[0], ranks) * tensor[0].numel() for tensor in tensors)


def pack(tensors: Sequence[Tensor], ranks: int, dtype: torch.dtype, into: Tensor | None = None) -> Tensor:
    """Whole tensors to [ranks shard_numel], ``into`` or new: each rank's padded rows of all of them, one after the other."""
    packed = tensors[0].new_empty(ranks * shard_numel(tensors, ranks), dtype=dtype) if into is None else into
    for tensor, place in zip(tensors, _places(packed.view(ranks, -1), tensors, ranks), strict=True):
        place.copy_(_padded(tensor, ranks * chunk_rows(tensor.shape[0], ranks)).view_as(place))
    return packed


def unpack(packed: Tensor, tensors: Sequence[Tensor], ranks: int) -> None:
    """[ranks, shard_numel] into the whole tensors."""
    for tensor, place in zip(tensors, _places(packed.view(ranks, -1), tensors, ranks), strict=True):
        tensor.copy_(place.flatten(0, 1)[: tensor.shape[0]])


def padded_views(shard: Tensor, tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """One rank's packed shard [shard_numel] as its rows of each tensor, padding at their end; views of ``shard``."""
    return [rows[0] for rows in _places(shard[None], tensors, ranks)]


def own_views(shard: Tensor, tensors: Sequence[Tensor], ranks: int, rank: int) -> list[Tensor]:
    """The same without padding: the rows that the rank has."""
    rows = [own_rows(tensor.shape[0], ranks, rank) for tensor in tensors]
    return [view[: own.stop - own.start] for view, own in zip(padded_views(shard, tensors, ranks), rows, strict=True)]


def pack_own(rows: Sequence[Tensor], tensors: Sequence[Tensor], ranks: int, dtype: torch.dtype) -> Tensor:
    """One rank's rows of each tensor to its packed shard [shard_numel]; the way back of own_views."""
    shard = rows[0].new_empty(shard_numel(tensors, ranks), dtype=dtype)
    for own, view in zip(rows, padded_views(shard, tensors, ranks), strict=True):
        view.copy_(_padded(own, view.shape[0]))
    return shard


def _padded(rows: Tensor, length: int) -> Tensor:
    """Zeros below, up to ``length`` rows."""
    missing = length - rows.shape[0]
    return torch.cat((rows, rows.new_zeros((missing, *rows.shape[1:])))) if missing else rows


def _places(packed: Tensor, tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Views [.., chunk_rows, *rest] of each tensor's part of packed [.., shard_numel]."""
    sizes = [chunk_rows(tensor.shape[0], ranks) * tensor[0].numel() for tensor in tensors]
    parts = packed.split(sizes, -1)
    return [part.unflatten(-1, (chunk_rows(t.shape[0], ranks), *t.shape[1:])) for part, t in zip(parts, tensors, strict=True)]
