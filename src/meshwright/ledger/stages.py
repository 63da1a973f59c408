"""Which blocks a pipeline rank holds: decoder layers of each kind, embedding, head, multi-token prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
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
        index: its place in model order. first_layer: model index of its first layer.
        root_again: of a pipeline under zero=3, whose passes free the root: whether the backward needs a weight of it, the head's or that of
            a norm behind the embedding. (An embedding's backward does not need its table.)
    """

    layers: tuple[tuple[LayerBlock, int], ...]
    first: bool
    last: bool
    index: int
    first_layer: int
    num_layers: int
    root_again: bool

    @property
    def content(self) -> tuple[object, ...]:
        """What it computes, wherever it is."""
        return self.layers, self.first, self.last


class StateKey(NamedTuple):
    """What the parameters of a stage depend on."""

    kinds: tuple[tuple[LayerKind, int], ...]
    first: bool
    last: bool


@dataclass(frozen=True)
class Pipeline:
    """The chunks of a model in model order, and the pipeline rank of each (dualpipe: of both copies)."""

    chunks: tuple[Chunk, ...]
    placement: tuple[int, ...]

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """For each pipeline rank the chunks that it holds, in model order; dualpipe's placement lists every chunk twice."""
        held: list[list[int]] = [[] for _ in range(max(self.placement) + 1)]
        for index, rank in enumerate(self.placement):
            held[rank].append(index % len(self.chunks))
        return tuple(map(tuple, held))

    @cached_property
    def representatives(self) -> tuple[tuple[int, int], ...]:
        """(first stage, number of stages) of each composition: stages of equal blocks and neighbours have equal counts."""
        found: dict[tuple[object, ...], list[int]] = {}
        for rank, held in enumerate(self.stages):
            content = tuple(self.chunks[index].content for index in held)
            found.setdefault((content, self.boundaries[rank]), []).append(rank)
        return tuple((ranks[0], len(ranks)) for ranks in found.values())

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The first and the last stage of each composition."""
        found: dict[tuple[object, ...], list[int]] = {}
        for rank, held in enumerate(self.stages):
            found.setdefault(tuple(self.chunks[index].content for index in held), []).append(rank)
        return tuple(sorted({rank for ranks in found.values() for rank in (ranks[0], ranks[-1])}))

    @cached_property
    def contents(self) -> tuple[int, ...]:
        """For each chunk the first chunk with the same blocks."""
        first: dict[object, int] = {}
        return tuple(first.setdefault(chunk.content, index) for index, chunk in enumerate(self.chunks))

    @cached_property
    def held(self) -> tuple[tuple[tuple[Chunk, int], ...], ...]:
        """For each pipeline rank its different chunks, each with how many equal ones it holds."""
        found: list[tuple[tuple[Chunk, int], ...]] = []
        for indices in self.stages:
            counts = Counter(self.contents[index] for index in indices)
            found.append(tuple((self.chunks[index], count) for index, count in counts.items()))
        return tuple(found)

    @cached_property
    def state_keys(self) -> tuple[StateKey, ...]:
        """For each pipeline rank what its parameters depend on: layers of each kind, and which ends of the model it has."""
        keys: list[StateKey] = []
        for indices in self.stages:
            kinds: Counter[LayerKind] = Counter()
            for index in indices:
                for block, count in self.chunks[index].layers:
                    kinds[block.kind] += count
            chunks = [self.chunks[index] for index in indices]
            keys.append(StateKey(tuple(kinds.items()), any(c.first for c in chunks), any(c.last for c in chunks)))
        return tuple(keys)

    @cached_property
    def boundaries(self) -> tuple[tuple[int, int], ...]:
        """For each pipeline rank (received, sent) activations of one micro-batch in the forward; where a V turns, a rank
        hands over to itself. dualpipe: of both copies, each for half of the micro-batches."""
        found = [[0, 0] for _ in self.stages]
        for index, (rank, next_rank) in enumerate(pairwise(self.placement)):
            if rank != next_rank and not self.chunks[index % len(self.chunks)].last:
                found[rank][1] += 1
                found[next_rank][0] += 1
        return tuple((received, sent) for received, sent in found)

    @cached_property
    def hops(self) -> tuple[int, ...]:
        """For each chunk but the last (dualpipe: of both copies) the pipeline places that its boundary lies between: place and place + 1;
        the way from the last place back to the first counts as the last. Any for a boundary inside one rank."""
        last = max(self.placement)
        return tuple(min(a, b) if abs(a - b) < 2 else last for a, b in pairwise(self.placement))

    def hops_of(self, stage: int) -> tuple[list[int], list[int]]:
        """The hops from a pipeline rank to the next chunks, and to the chunks before: where it sends forward, and where back."""
        there: list[int] = []
        back: list[int] = []
        for index, (rank, next_rank) in enumerate(pairwise(self.placement)):
            if rank == next_rank or self.chunks[index % len(self.chunks)].last:
                continue
            if rank == stage:
                there.append(self.hops[index])
            elif next_rank == stage:
                back.append(self.hops[index])
        return there, back

    def chunks_of(self, stage: int) -> list[Chunk]:
        """The chunks that a pipeline rank holds, in model order."""
        return [self.chunks[index] for index in self.stages[stage]]


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
        found.append(_chunk(model, start, size, index, chunks, recompute, limit))
        start += size
    return Pipeline(tuple(found), placement(schedule, pp, virtual_stages))


def _chunk(model: Model, start: int, size: int, index: int, chunks: int, recompute: str, limit: int | None) -> Chunk:
    blocks = Counter(layer_blocks(model, start, size, recompute, limit))
    first, last = index == 0, index == chunks - 1
    return Chunk(tuple(blocks.items()), first, last, index, start, size, last or (first and model.embedding_norm))


def layer_blocks(model: Model, start: int, size: int, recompute: str, limit: int | None) -> list[LayerBlock]:
    """The blocks of a chunk's layers, one by one; ``limit`` recomputes the first layers of the chunk only."""
    return [
        LayerBlock(kind, recompute if recompute != "full" or limit is None or offset < limit else "none")
        for offset, kind in enumerate(model.layers[start : start + size])
    ]
