"""Three layers in the middle of a chunk under ZeRO-2 and 3: gathers, compute and scatters, and where compute stops hiding them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.timeline.sharded import Pass, Piece, backward_pass, chunk_layers, forward_pass

if TYPE_CHECKING:
    from meshwright.priced import Priced

__all__ = ["Direction", "LayerOverlap", "layer_overlap"]

SHOWN = 3
"""Layers that are drawn."""


@dataclass(frozen=True)
class Direction:
    """The forward or the backward of one micro-batch on one chunk.

    Attributes:
        name: "forward" or "backward". whole: every layer. shown: the pieces of the layers that are drawn, from their first
            computation's start.
        compute_s, collective_s: of one layer; its gather in the forward, gather and scatter in the backward.
    """

    name: str
    whole: Pass
    shown: tuple[Piece, ...]
    compute_s: float
    collective_s: float

    @property
    def hidden(self) -> bool:
        """Whether a layer's compute is long enough for the collectives beside it."""
        return self.collective_s <= self.compute_s


@dataclass(frozen=True)
class LayerOverlap:
    """Both directions; ``tokens`` of one micro-batch on one rank. ``hides``: whether the stack overlaps them at all."""

    directions: tuple[Direction, ...]
    tokens: int
    hides: bool

    def tokens_to_hide(self, direction: Direction) -> int:
        """About how many tokens a micro-batch needs on a rank for its compute to hide the collectives, whose size does not depend
        on them: compute taken as proportional to tokens (attention, which grows faster, makes it fewer)."""
        return round(self.tokens * direction.collective_s / direction.compute_s)

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            **{
                each.name: {
                    "compute_s": each.compute_s, "collective_s": each.collective_s, "hidden": each.hidden,
                    "exposed_s": each.whole.exposed_s, "tokens_to_hide": self.tokens_to_hide(each),
                    "pieces": [piece._asdict() for piece in each.shown],
                }
                for each in self.directions
            },
        }  # fmt: skip


def layer_overlap(numbers: Priced) -> LayerOverlap | None:
    """The overlap on the chunk with the most layers; None where a micro-batch gathers and scatters nothing."""
    ledger = numbers.ledger
    chunk = max(ledger.pipeline.chunks, key=lambda each: each.num_layers)
    layers, ends = chunk_layers(numbers, chunk)
    if not any(layer.gather_s or layer.regather_s or layer.scatter_s for layer in layers):
        return None
    hides = ledger.stack.hides_data_parallel
    middle = min(len(layers) // 2, max(len(layers) - SHOWN, 0))
    names = [layer.name for layer in layers[middle : middle + SHOWN]]
    typical = layers[middle]
    layout = ledger.layout
    directions = (
        _direction("forward", forward_pass(layers, ends, hides), names, typical.forward_s, typical.gather_s),
        _direction("backward", backward_pass(layers, ends, hides), names, typical.backward_s, typical.regather_s + typical.scatter_s),
    )
    return LayerOverlap(directions, layout.mb * ledger.workload.seq // layout.cp, hides)


def _direction(name: str, whole: Pass, layers: list[str], compute_s: float, collective_s: float) -> Direction:
    """Cut out what runs while the shown layers compute; times from the first one's start."""
    computed = [piece for piece in whole.lane("compute") if piece.name in layers]
    begin, end = min(piece.start_s for piece in computed), max(piece.end_s for piece in computed)
    inside = [piece for piece in whole.pieces if piece.start_s < end and piece.end_s > begin]
    shown = [Piece(p.lane, p.name, max(p.start_s, begin) - begin, min(p.end_s, end) - begin) for p in inside]
    return Direction(name, whole, tuple(shown), compute_s, collective_s)
