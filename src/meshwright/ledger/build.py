"""The ledger of one training step: the blocks, units and step rows that a layout gives a model, and which rank has which.

Blocks and units are built once per kind, whatever the number of layers; a stage's share is counts of them. The same code
serves one Layout and a column of them (search/space.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.arithmetic import Num, kept
from meshwright.ledger import step
from meshwright.ledger.blocks.layer import (
    Block,
    Sublayer,
    attention_sublayer,
    embedding_block,
    feed_forward_sublayer,
    head_block,
    layer_block,
    mtp_block,
)
from meshwright.ledger.data_parallel import Unit, build_unit, shard_ranks
from meshwright.ledger.rows import Row
from meshwright.ledger.sizes import Sizes
from meshwright.ledger.stages import LayerBlock, Pipeline, pipeline
from meshwright.spec.model import LayerKind, Model
from meshwright.spec.parameters import embedding_parameters, head_parameters, layer_parameters, mtp_kind, mtp_parameters
from meshwright.spec.stack import DEFAULT_STACK, STACKS, Stack
from meshwright.spec.workload import PRECISIONS, Precision, Training


def precision_of(workload: Training, layout: Any) -> Precision:
    """The recipe that was asked for, or the layout's default: ``fsdp`` with zero=3, else ``bf16`` (DESIGN 4.2)."""
    return PRECISIONS[workload.precision or ("fsdp" if layout.zero == 3 else "bf16")]


@dataclass
class Ledger:
    """What one step consists of.

    Attributes:
        layers: a block per kind of layer and recompute policy. layer_units: a unit per kind of layer.
        pipeline: which chunk has which blocks, and which pipeline rank has which chunk.
    """

    model: Model
    workload: Training
    layout: Any
    stack: Stack
    precision: Precision
    sizes: Sizes
    pipeline: Pipeline
    _layers: dict[LayerBlock, Block] = field(default_factory=dict)
    _attention: dict[int | None, Sublayer] = field(default_factory=dict)
    _feed_forward: dict[bool, Sublayer] = field(default_factory=dict)
    _layer_units: dict[LayerKind, Unit] = field(default_factory=dict)
    _roots: dict[tuple[bool, bool], Unit] = field(default_factory=dict)

    @kept
    def micro_batches(self) -> Num:
        """m of one pipeline."""
        return self.layout.micro_batches(self.workload.batch)

    def layer(self, block: LayerBlock) -> Block:
        if block not in self._layers:
            self._layers[block] = layer_block(self.sizes, block, *self.sublayers(block.kind))
        return self._layers[block]

    def sublayers(self, kind: LayerKind) -> tuple[Sublayer, Sublayer]:
        """Attention and MLP or experts of a layer, which layers of other kinds and policies may share."""
        if kind.window not in self._attention:
            self._attention[kind.window] = attention_sublayer(self.sizes, kind.window)
        if kind.moe not in self._feed_forward:
            self._feed_forward[kind.moe] = feed_forward_sublayer(self.sizes, kind.moe)
        return self._attention[kind.window], self._feed_forward[kind.moe]

    def layer_unit(self, kind: LayerKind) -> Unit:
        if kind not in self._layer_units:
            self._layer_units[kind] = build_unit("layers", layer_parameters(self.model, kind), self.sizes)
        return self._layer_units[kind]

    @kept
    def embedding(self) -> Block:
        return embedding_block(self.sizes)

    @kept
    def head(self) -> Block:
        return head_block(self.sizes)

    @kept
    def mtp(self) -> Block:
        return mtp_block(self.sizes)

    @kept
    def mtp_layer(self) -> LayerBlock:
        """The decoder layer inside each multi-token-prediction layer."""
        recompute = self.layout.recompute if self.layout.recompute_layers is None else "none"
        return LayerBlock(mtp_kind(self.model), recompute)

    @kept
    def mtp_unit(self) -> Unit:
        parameters = mtp_parameters(self.model) + layer_parameters(self.model, mtp_kind(self.model))
        return build_unit("mtp", parameters, self.sizes)

    def root(self, first: bool, last: bool) -> Unit:
        """Embedding and head as far as a stage has them. A tied head or multi-token prediction on another stage than the
        embedding needs a copy of the table, and both sum its gradient; in a V and in dualpipe one rank has both ends."""
        if (first, last) not in self._roots:
            parameters = embedding_parameters(self.model) if first else ()
            if last:
                parameters = parameters + head_parameters(self.model, tied_copy=not first)
                if self.model.mtp_layers and not self.model.tied_embeddings and not first:
                    parameters = parameters + embedding_parameters(self.model)[:1]
            shares = first != last and (self.model.tied_embeddings or self.model.mtp_layers > 0)
            self._roots[first, last] = build_unit("root", parameters, self.sizes, is_root=True, shares_table=shares)
        return self._roots[first, last]

    def stage(self, index: int) -> Stage:
        return Stage(self, index)

    def stages(self) -> list[Stage]:
        return [Stage(self, index) for index in range(self.layout.pp)]


@dataclass
class Stage:
    """The share of one pipeline rank."""

    ledger: Ledger
    index: int

    @kept
    def chunks(self) -> list[Any]:
        return self.ledger.pipeline.chunks_of(self.index)

    @property
    def first(self) -> bool:
        return any(chunk.first for chunk in self.chunks)

    @property
    def last(self) -> bool:
        return any(chunk.last for chunk in self.chunks)

    def blocks(self) -> Iterator[tuple[Block, int]]:
        """Blocks with how often this stage has them, in model order; dualpipe: of both copies, each for half of the
        micro-batches."""
        for chunk in self.chunks:
            yield from chunk_blocks(self.ledger, chunk)

    def units(self) -> Iterator[tuple[Unit, int]]:
        """Units with how often this stage has them."""
        ledger = self.ledger
        for chunk in self.chunks:
            for block, count in chunk.layers:
                yield ledger.layer_unit(block.kind), count
            if chunk.last and ledger.model.mtp_layers:
                yield ledger.mtp_unit, ledger.model.mtp_layers
        if self.first or self.last:
            yield ledger.root(self.first, self.last), 1

    def boundaries(self) -> tuple[int, int]:
        """(received, sent) activations of one micro-batch in the forward; the backward sends what it received."""
        return self.ledger.pipeline.boundaries[self.index]


def chunk_blocks(ledger: Ledger, chunk: Any) -> Iterator[tuple[Block, int]]:
    """The blocks of one chunk in model order, with counts."""
    if chunk.first:
        yield ledger.embedding, 1
    for block, count in chunk.layers:
        yield ledger.layer(block), count
    if chunk.last:
        yield ledger.head, 1
        if count := ledger.model.mtp_layers:
            yield ledger.embedding, count
            yield ledger.mtp, count
            yield ledger.layer(ledger.mtp_layer), count
            yield ledger.head, count


def build(model: Model, workload: Training, layout: Any, stack: Stack | None = None, precision: Precision | None = None) -> Ledger:
    """The ledger of one step.

    Args:
        layout: one Layout, or a column of them. It is taken as legal (spec/rules/).
    """
    stack = stack or STACKS[DEFAULT_STACK]
    precision = precision or precision_of(workload, layout)
    sizes = Sizes(model, workload, layout, precision, stack)
    cut = pipeline(model, layout.schedule, layout.pp, layout.virtual_stages, layout.stages, layout.recompute, layout.recompute_layers)
    return Ledger(model, workload, layout, stack, precision, sizes, cut)


def scalar_rows(ledger: Ledger) -> list[Row]:
    """Rows that every rank has once per step whatever it holds: the count of tokens and the norm of the gradients."""
    layout = ledger.layout
    data = shard_ranks(layout) * layout.dp_replicate
    return step.token_count(ledger.sizes, data) + step.gradient_norm(ledger.sizes, data * layout.tp * layout.pp)


def step_rows(stage: Stage) -> list[Row]:
    """All rows that a rank of this stage has once per step; those of equal units once, with their number."""
    mirrored = stage.ledger.layout.schedule == "dualpipe" and stage.ledger.layout.pp > 1
    rows = scalar_rows(stage.ledger)
    for unit, count in stage.units():
        rows += [replace(row, times=count * row.times) for row in unit.step + (unit.mirror if mirrored else [])]
    return rows
