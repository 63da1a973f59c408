"""Sharded parameters against compute, layer by layer: when each gather, computation and scatter of one micro-batch runs.

Collectives of one group run one after the other. A gather runs one layer ahead: that of layer i + 1 may start when layer i does
(FSDP2's implicit prefetch; memory holds one unit that is used and one that arrives). In the backward the gather of layer i - 1 is
issued before the scatter of layer i. What a stack does not hide runs in line with the compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from meshwright.chunk_time import layer_pairs, root_of

if TYPE_CHECKING:
    from meshwright.ledger.stages import Chunk
    from meshwright.priced import Priced

__all__ = ["Layer", "Pass", "Piece", "backward_pass", "chunk_layers", "forward_pass"]

COMPUTE, GATHER, SCATTER = "compute", "gather", "scatter"


class Layer(NamedTuple):
    """Seconds of one layer and its unit. ``gather_s`` of the forward, ``regather_s`` and ``scatter_s`` of the backward."""

    name: str
    forward_s: float
    backward_s: float
    gather_s: float
    regather_s: float
    scatter_s: float


class Piece(NamedTuple):
    """One stretch of a lane."""

    lane: str
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Pass:
    """The pieces of a forward or a backward, in the order in which they were issued."""

    pieces: tuple[Piece, ...]

    @property
    def span_s(self) -> float:
        return max((piece.end_s for piece in self.pieces), default=0.0)

    def lane(self, name: str) -> list[Piece]:
        """The pieces of one lane that take time."""
        return [piece for piece in self.pieces if piece.lane == name and piece.end_s > piece.start_s]

    @property
    def exposed_s(self) -> float:
        """What the collectives add to the compute."""
        return self.span_s - sum(piece.end_s - piece.start_s for piece in self.lane(COMPUTE))


@dataclass(frozen=True)
class Ends:
    """What stands before and behind the layers of a chunk: embedding and head, and their unit, the root."""

    embedding: Layer | None = None
    head: Layer | None = None
    gather_s: float = 0.0
    scatter_s: float = 0.0
    regather_s: float = 0.0


def chunk_layers(priced: Priced, chunk: Chunk) -> tuple[list[Layer], Ends]:
    """A chunk's layers in the order of the forward (equal kinds stand together), and its ends."""
    layers: list[Layer] = []
    for unit, block, count in layer_pairs(priced, chunk):
        times = (block.forward_s, block.backward_s, unit.gather_s, unit.regather_s, unit.scatter_s)
        for _ in range(count):
            layers.append(Layer(f"layer {chunk.first_layer + len(layers)}", *map(float, times)))
    if not (chunk.first or chunk.last):
        return layers, Ends()
    root = priced.root(*root_of(priced, chunk))
    embedding, head = priced.embedding, priced.head
    return layers, Ends(
        Layer("embedding", float(embedding.forward_s), float(embedding.backward_s), 0.0, 0.0, 0.0) if chunk.first else None,
        Layer("head", float(head.forward_s), float(head.backward_s), 0.0, 0.0, 0.0) if chunk.last else None,
        float(root.gather_s),
        float(root.scatter_s),
        float(root.regather_s) if chunk.root_again else 0.0,
    )


def forward_pass(layers: list[Layer], ends: Ends | None = None, hides: bool = True) -> Pass:
    """The forward of one micro-batch; it starts at 0."""
    ends = ends or Ends()
    pieces = [Piece(GATHER, "root", 0.0, ends.gather_s)]
    now = issued = gathered = ends.gather_s  # compute is free; the next gather may start; the last one has ended
    if ends.embedding is not None:
        now = _run(pieces, COMPUTE, "embedding", now, ends.embedding.forward_s)
    for layer in layers:
        gathered = _run(pieces, GATHER, layer.name, max(gathered, issued) if hides else now, layer.gather_s)
        issued = max(now, gathered)
        now = _run(pieces, COMPUTE, layer.name, issued, layer.forward_s)
    if ends.head is not None:
        _run(pieces, COMPUTE, "head", now, ends.head.forward_s)
    return Pass(tuple(pieces))


def backward_pass(layers: list[Layer], ends: Ends | None = None, hides: bool = True) -> Pass:
    """The backward of one micro-batch; it starts at 0. The head's backward needs no gather where the root stays whole (no stages)."""
    ends = ends or Ends()
    pieces = [Piece(GATHER, "root", 0.0, ends.regather_s)] if ends.regather_s else []
    now = issued = free = ends.regather_s  # compute is free; the next gather may start; no collective runs any more
    if ends.head is not None:
        now = _run(pieces, COMPUTE, "head", now, ends.head.backward_s)
    left: tuple[Layer, float] | None = None  # the layer whose scatter is still to come, and when its gradient was there
    for layer in reversed(layers):
        free = _run(pieces, GATHER, layer.name, max(free, issued) if hides else now, layer.regather_s)
        if left is not None and hides:
            gathered, free = free, _run(pieces, SCATTER, left[0].name, max(free, left[1]), left[0].scatter_s)
        else:
            gathered = free
        issued = max(now, gathered)
        now = _run(pieces, COMPUTE, layer.name, issued, layer.backward_s)
        left = (layer, now)
        if not hides:
            now = _run(pieces, SCATTER, layer.name, now, layer.scatter_s)
    made = now
    if ends.embedding is not None:
        now = _run(pieces, COMPUTE, "embedding", now, ends.embedding.backward_s)
    if left is not None and hides:
        free = _run(pieces, SCATTER, left[0].name, max(free, made), left[0].scatter_s)
    _run(pieces, SCATTER, "root", max(free, now), ends.scatter_s)
    return Pass(tuple(pieces))


def _run(pieces: list[Piece], lane: str, name: str, start_s: float, seconds: float) -> float:
    """Add a piece; when it ends."""
    pieces.append(Piece(lane, name, start_s, start_s + seconds))
    return start_s + seconds
