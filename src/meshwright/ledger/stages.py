"""Which blocks a pipeline rank holds: decoder layers of each kind, embedding, head, multi-token prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from meshwright.schedule.build import placement
from meshwright.spec.model import LayerKind, Model


class LayerBlock(NamedTuple):
    """A kind of layer, and whether its forward runs again in the backward."""

    kind: LayerKind
    recompute: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive layers on one rank; a rank has one, or v of them.

    Attributes:
        layers: (block, count) in the order of their first layer. first: has the embedding. last: has norm, head and loss.
        first_layer: model index of its first layer.
    """

    layers: tuple[tuple[LayerBlock, int], ...]
    first: bool
    last: bool
    first_layer: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The chunks of a model in model order, and the pipeline rank of each (dualpipe: both copies)."""

    chunks: tuple[Chunk, ...]
    placement: tuple[int, ...]

    def chunks_of(self, stage: int) -> list[Chunk]:
        """The chunks that a pipeline rank holds, in model order (dualpipe: of both copies)."""
        return [self.chunks[self.model_chunk(index)] for index, rank in enumerate(self.placement) if rank == stage]

    def model_chunk(self, index: int) -> int:
        """The model's chunk behind entry ``index`` of the placement: dualpipe lists two copies of it."""
        return index % len(self.chunks)


@lru_cache(maxsize=4096)
def pipeline(
    model: Model, schedule: str, pp: int, virtual_stages: int, stages: tuple[int, ...] | None, recompute: str, limit: int | None
) -> Pipeline:
    """Cut the model into pp x v chunks. rules/ has checked that every layer has its place."""
    chunks = pp * virtual_stages
    sizes = stages or (model.num_layers // chunks,) * chunks
    found: list[Chunk] = []
    start = 0
    for index, size in enumerate(sizes):
        found.append(_chunk(model, start, size, index == 0, index == chunks - 1, recompute, limit))
        start += size
    return Pipeline(tuple(found), placement(schedule, pp, virtual_stages))


def _chunk(model: Model, start: int, size: int, first: bool, last: bool, recompute: str, limit: int | None) -> Chunk:
    blocks: Counter[LayerBlock] = Counter()
    for offset, kind in enumerate(model.layers[start : start + size]):
        again = recompute if recompute != "full" or limit is None or offset < limit else "none"
        blocks[LayerBlock(kind, again)] += 1
    return Chunk(tuple(blocks.items()), first, last, start, size)
