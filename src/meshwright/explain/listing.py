"""Every ledger row that one rank has in one step, in the order of a step, with the layers and the calls that it stands for.

Layers that compute the same share one row: ``layers`` says which they are, ``calls`` how often it happens in a step.
m micro-batches; dualpipe's ranks hold two copies of the model's parts, each for half of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.ledger import step
from meshwright.ledger.blocks.layer import Block
from meshwright.ledger.build import Ledger, Stage, scalar_rows
from meshwright.ledger.data_parallel import Unit
from meshwright.ledger.rows import Phase, Row
from meshwright.ledger.stages import LayerBlock, layer_blocks


@dataclass(frozen=True, slots=True)
class Listed:
    """A row and where it belongs.

    Attributes:
        part: "embedding", "layers", "head", "mtp" (multi-token prediction), "root" (the unit of embedding and head),
            "pipeline" or "step". layers: model indices of the layers that share the row, () outside of layers.
        calls: per step.
    """

    row: Row
    part: str
    layers: tuple[int, ...]
    calls: int


class StageListing:
    """The rows of one pipeline rank's stage, or of one of its layers."""

    def __init__(self, ledger: Ledger, stage: int, layer: int | None = None) -> None:
        self.ledger, self.stage, self.layer = ledger, Stage(ledger, stage), layer
        copies = 2 if ledger.layout.schedule == "dualpipe" and ledger.layout.pp > 1 else 1
        self.micro_batches = int(ledger.micro_batches) // copies

    @cached_property
    def layers(self) -> list[tuple[LayerBlock, tuple[int, ...]]]:
        """The stage's layers by what they compute, in the order of their first layer."""
        layout, found = self.ledger.layout, dict[LayerBlock, list[int]]()
        for chunk in self.stage.chunks:
            blocks = layer_blocks(self.ledger.model, chunk.first_layer, chunk.num_layers, layout.recompute, layout.recompute_layers)
            for index, block in enumerate(blocks, chunk.first_layer):
                if self.layer is None or self.layer == index:
                    found.setdefault(block, []).append(index)
        return [(block, tuple(sorted(layers))) for block, layers in found.items()]

    @cached_property
    def rows(self) -> list[Listed]:
        """All of them, as the step goes."""
        return [*self._forward(), *self._backward(), *self._after("reduce"), *self._after("optimizer")]

    def _forward(self) -> Iterator[Listed]:
        whole = self.layer is None
        if whole:
            yield from self._scalars("forward")
            yield from self._boundary("forward", "recv")
            if self.stage.first or self.stage.last:
                yield from self._unit_forward(self.ledger.root(self.stage.first, self.stage.last), "root", ())
        if whole and self.stage.first:
            yield from self._each(self.ledger.embedding.forward, "embedding")
        for block, layers in self.layers:
            yield from self._unit_forward(self.ledger.layer_unit(block.kind), "layers", layers)
            yield from self._each(self.ledger.layer(block).forward, "layers", layers)
        if whole and self.stage.last:
            yield from self._each(self.ledger.head.forward, "head")
            if self.ledger.model.mtp_layers:
                yield from self._unit_forward(self.ledger.mtp_unit, "mtp", ())
                for part in self._mtp_blocks():
                    yield from self._each(part.forward, "mtp")
        if whole:
            yield from self._boundary("forward", "send")

    def _backward(self) -> Iterator[Listed]:
        whole = self.layer is None
        if whole:
            yield from self._boundary("backward_input", "recv")
        if whole and self.stage.last:
            if self.ledger.model.mtp_layers:
                yield from self._backward_of(self._mtp_blocks()[::-1], self.ledger.mtp_unit, "mtp")
            yield from self._each(self.ledger.head.backward, "head")
        for block, layers in self.layers[::-1]:
            yield from self._backward_of([self.ledger.layer(block)], self.ledger.layer_unit(block.kind), "layers", layers)
        if whole and self.stage.first:
            yield from self._each(self.ledger.embedding.backward, "embedding")
        if whole and (self.stage.first or self.stage.last):
            yield from self._root_backward()
        if whole:
            yield from self._boundary("backward_input", "send")

    def _root_backward(self) -> Iterator[Listed]:
        """A pass over an end of the model gathers the root again where it needs a weight of it, and reduces its gradient."""
        again = sum(chunk.root_again for chunk in self.stage.chunks) * self.micro_batches
        for listed in self._each(self.ledger.root(self.stage.first, self.stage.last).backward, "root"):
            if listed.row.op != "all_gather":
                yield listed
            elif again:
                yield replace(listed, calls=again)

    def _backward_of(self, blocks: list[Block], unit: Unit, part: str, layers: tuple[int, ...] = ()) -> Iterator[Listed]:
        """Gather, then by block recompute and backward, then reduce."""
        yield from self._each([row for row in unit.backward if row.op == "all_gather"], part, layers)
        for block in blocks:
            yield from self._each([*block.recompute, *block.backward], part, layers)
        yield from self._each([row for row in unit.backward if row.op != "all_gather"], part, layers)

    def _after(self, phase: str) -> Iterator[Listed]:
        """What happens once per step behind the last backward; each unit's optimizer goes before its gather."""
        mirrored = self.ledger.layout.schedule == "dualpipe" and self.ledger.layout.pp > 1
        for unit, part, layers in self._units():
            rows = [row for row in (*unit.step, *(unit.mirror if mirrored else ())) if row.phase == phase]
            yield from self._once(sorted(rows, key=lambda row: phase == "optimizer" and row.op is not None), part, layers)
        yield from self._scalars(phase)

    def _units(self) -> Iterator[tuple[Unit, str, tuple[int, ...]]]:
        for block, layers in self.layers:
            yield self.ledger.layer_unit(block.kind), "layers", layers
        if self.layer is not None:
            return
        if self.stage.last and self.ledger.model.mtp_layers:
            yield self.ledger.mtp_unit, "mtp", ()
        if self.stage.first or self.stage.last:
            yield self.ledger.root(self.stage.first, self.stage.last), "root", ()

    def _mtp_blocks(self) -> list[Block]:
        """What each multi-token-prediction layer computes."""
        ledger = self.ledger
        return [ledger.mtp, ledger.layer(ledger.mtp_layer), ledger.embedding, ledger.head]

    def _unit_forward(self, unit: Unit, part: str, layers: tuple[int, ...]) -> Iterator[Listed]:
        yield from self._once([row for row in unit.step if row.phase == "forward"], part, layers)
        yield from self._each(unit.forward, part, layers)

    def _boundary(self, phase: Phase, op: str) -> Iterator[Listed]:
        received, sent = self.stage.boundaries()
        if phase != "forward":
            received, sent = sent, received
        rows = step.boundary(self.ledger.sizes, phase, received, sent) if self.ledger.layout.pp > 1 else []
        yield from self._each([row for row in rows if row.op == op], "pipeline")

    def _scalars(self, phase: str) -> Iterator[Listed]:
        if self.layer is None:
            yield from self._once([row for row in scalar_rows(self.ledger) if row.phase == phase], "step")

    def _each(self, rows: Iterable[Row], part: str, layers: tuple[int, ...] = ()) -> Iterator[Listed]:
        """Rows that every micro-batch has."""
        for row in rows:
            passes = self._ends if part == "root" else 1
            yield Listed(row, part, layers, int(row.times) * self._count(part, layers) * self.micro_batches * passes)

    def _once(self, rows: Iterable[Row], part: str, layers: tuple[int, ...] = ()) -> Iterator[Listed]:
        """Rows that a step has."""
        for row in rows:
            yield Listed(row, part, layers, int(row.times) * self._count(part, layers))

    @cached_property
    def _ends(self) -> int:
        """Chunks of the stage that are an end of the model: each of their passes needs the root."""
        return sum(chunk.first or chunk.last for chunk in self.stage.chunks)

    def _count(self, part: str, layers: tuple[int, ...]) -> int:
        if part == "mtp":
            return self.ledger.model.mtp_layers
        return len(layers) if part == "layers" else 1
