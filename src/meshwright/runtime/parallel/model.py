"""The part of the model that a rank holds: one or several chunks of consecutive layers, with the embedding if one of them is the first,
and norm, head and loss if one is the last.

Without a pipeline one chunk is the whole model. Layers are units of data parallelism; what the rank has of the ends is the root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from meshwright.runtime.cut import local_part
from meshwright.runtime.data_parallel.units import ROOT, Leaves, Unit, add_parameters, hold
from meshwright.runtime.initialise import initialised
from meshwright.runtime.parallel.elementwise import table_rows
from meshwright.runtime.parallel.layer import Layer, LayerOutput, MtpLayer
from meshwright.runtime.parallel.linear import column_linear
from meshwright.runtime.parallel.moe_block import summed
from meshwright.runtime.parallel.norm import norm
from meshwright.runtime.parallel.sequence import take
from meshwright.runtime.parallel.setting import MicroBatch, Setting
from meshwright.runtime.parallel.vocabulary import cross_entropy, embedding
from meshwright.runtime.reference.loss import shifted_labels, shifted_tokens
from meshwright.runtime.reference.weights import Weights
from meshwright.runtime.scope import in_module
from meshwright.spec import names
from meshwright.spec.model import Model
from meshwright.spec.parameters import (
    Parameter,
    all_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_kind,
    mtp_parameters,
)


@dataclass(frozen=True, kw_only=True)
class ChunkPlan:
    """Which part of the model a chunk is: decoder layers ``layers``; first: it has the embedding; last: norm, head, loss, and the
    multi-token-prediction layers."""

    layers: range
    first: bool = True
    last: bool = True


class Passed(NamedTuple):
    """What one piece gives of one micro-batch.

    Attributes:
        hidden: the stream for the next piece; None behind the last.
        loss: cross-entropy summed over this rank's labels, of multi-token prediction times its weight; None but of pieces with the head.
        balance: the layer's balance loss. counts: how many of this rank's tokens chose each expert, int64 [E]. None without experts.
    """

    hidden: Tensor | None
    loss: Tensor | None = None
    balance: Tensor | None = None
    counts: Tensor | None = None


@dataclass(frozen=True)
class Piece:
    """A part of a chunk whose backward can be a call of its own.

    Attributes:
        run: on the stream [mb, S/(cp, tp), D] (None for the embedding) and a micro-batch.
        layer: of whose unit it needs the parameters; None: of the root alone.
    """

    run: Callable[[Tensor | None, MicroBatch], Passed]
    layer: int | None = None


@dataclass(frozen=True)
class Output:
    """What one micro-batch gives on a rank that has the whole model.

    Attributes:
        cross_entropy: summed over this rank's labels, the multi-token-prediction part (times its weight) included.
        balance: the layers' balance losses, summed; None without one.
        counts: by layer, how many of this rank's tokens chose each expert, int64 [E].
    """

    cross_entropy: Tensor
    balance: Tensor | None
    counts: dict[int, Tensor] = field(default_factory=dict)


class RankModel(nn.Module):
    """See the module's docstring.

    Args:
        chunks: in model order. Equal parts of the model are there once, whatever the number of chunks that pass them.
        tensors: this rank's part of every parameter, by full name; see ``local_tensors``.
        mtp_weight: weight of the multi-token-prediction losses together.
    """

    def __init__(self, setting: Setting, chunks: Sequence[ChunkPlan], tensors: Mapping[str, Tensor], mtp_weight: float) -> None:
        super().__init__()
        self.setting, self.chunks, self.mtp_weight = setting, tuple(chunks), mtp_weight
        model = setting.model
        places = {index: place for chunk in chunks for place, index in enumerate(chunk.layers)}
        self.layers = nn.ModuleDict({str(index): self._layer(index, places[index], tensors) for index in sorted(places)})
        if any(chunk.last for chunk in chunks):
            for index in range(model.num_layers, model.num_layers + model.mtp_layers):
                self.layers[str(index)] = self._layer(index, None, tensors)
        add_parameters(self, {name: tensor for name, tensor in tensors.items() if not name.startswith("layers.")})
        self._root_leaves = Leaves(self, but=self.layers)

    def _layer(self, index: int, place: int | None, tensors: Mapping[str, Tensor]) -> Layer:
        """place: in the chunk; None for a multi-token-prediction layer."""
        layout, prefix = self.setting.layout, names.layer(index) + "."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        parameters = unit_parameters(self.setting.model, index)
        trained = {f"{p.module}.{p.name}" for p in parameters if p.trained}
        limit = layout.recompute_layers
        whole = layout.recompute == "full" and (limit is None or (place is not None and place < limit))
        kind = mtp_kind(self.setting.model) if place is None else self.setting.model.layers[index]
        return (MtpLayer if place is None else Layer)(self.setting, index, kind, own, trained, whole)

    def units(self) -> list[Unit]:
        """In the order of the forward; the root last, if the rank has an end of the model."""
        model, layout = self.setting.model, self.setting.layout
        found = [
            Unit(name=f"layers.{index}", module=layer, held=hold(unit_parameters(model, int(index)), model, layout))
            for index, layer in self.layers.items()
        ]
        root = root_parameters(model, self.chunks)
        return [*found, Unit(name=ROOT, module=self, held=hold(root, model, layout))] if root else found

    def forward(self, batch: MicroBatch) -> tuple[Tensor | None, ...]:
        """The whole model; returns Output's tensors, see ``run``.

        A plain tuple: FSDP2 hooks the tensors that it finds in a module's output.
        """
        (chunk,) = self.chunks
        x: Tensor | None = None
        losses, balances, counts = [], [], []
        for piece in self.pieces(chunk):
            passed = piece.run(x, batch)
            x = passed.hidden
            if passed.loss is not None:
                losses.append(passed.loss)
            if piece.layer is not None:
                balances.append(passed.balance)
                counts.append(passed.counts)
        return sum(losses[1:], losses[0]), summed(balances), *counts

    def run(self, batch: MicroBatch) -> Output:
        """One micro-batch's forward."""
        total, balance, *counts = self(batch)
        assert total is not None
        return Output(total, balance, {int(index): chosen for index, chosen in zip(self.layers, counts, strict=True) if chosen is not None})

    def pieces(self, chunk: ChunkPlan, hooks: bool = True) -> list[Piece]:
        """A chunk's pieces in the order of the forward.

        hooks: whether FSDP2's hooks run with a layer; a pipeline gathers and reduces by its schedule.
        """
        found = [Piece(lambda _, batch: Passed(self._embed(batch)))] if chunk.first else []
        for index in chunk.layers:
            found.append(Piece(self._layer_piece(index, hooks), index))
        if chunk.last:
            found.append(Piece(self._head))
            for depth in range(self.setting.model.mtp_layers):
                found.append(Piece(self._mtp_piece(depth, hooks), self.setting.model.num_layers + depth))
        return found

    def _layer_piece(self, index: int, hooks: bool) -> Callable[[Tensor | None, MicroBatch], Passed]:
        layer = self.layers[str(index)]
        call: Callable[..., LayerOutput] = layer if hooks else layer.forward

        def run(x: Tensor | None, batch: MicroBatch) -> Passed:
            hidden, balance, counts = call(x, batch)
            return Passed(hidden, None, balance, counts)

        return run

    def _mtp_piece(self, depth: int, hooks: bool) -> Callable[[Tensor | None, MicroBatch], Passed]:
        """A later token's embedding, a multi-token-prediction layer, and the shared head."""
        model = self.setting.model
        layer = self.layers[str(model.num_layers + depth)]
        call: Callable[..., LayerOutput] = layer if hooks else layer.forward

        def run(x: Tensor | None, batch: MicroBatch) -> Passed:
            weights = self._root_weights()
            later = self._look_up(weights, shifted_tokens(batch.tokens, depth + 1))
            hidden, balance, counts = call(x, batch, later)
            loss = self._loss(weights, hidden, shifted_labels(batch.labels, by=depth + 1))
            return Passed(hidden, self.mtp_weight / model.mtp_layers * loss, balance, counts)

        return run

    def _root_weights(self) -> Weights:
        """As they are now."""
        return self._root_leaves.now()

    def _look_up(self, weights: Weights, tokens: Tensor) -> Tensor:
        """The rows of whole sequences' tokens [mb, S] for the stream: [mb, S/(cp, tp), D]."""
        setting = self.setting
        own = take(tokens, setting.looked_up_positions)
        with in_module(names.EMBEDDING):
            return embedding(own, weights[f"{names.EMBEDDING}.weight"], setting.vocab, setting.sp)

    def _embed(self, batch: MicroBatch) -> Tensor:
        setting, model, weights = self.setting, self.setting.model, self._root_weights()
        x = self._look_up(weights, batch.tokens)
        if model.positions == "learned":
            with in_module(names.POSITIONS):
                x = x + table_rows(weights[f"{names.POSITIONS}.weight"], setting.stream_positions.tensor)
        if model.embedding_norm:
            with in_module(names.EMBEDDING_NORM):
                x = norm(x, weights, names.EMBEDDING_NORM, model)
        return batch.drop(x, setting, -1, "embedding")

    def _head(self, x: Tensor | None, batch: MicroBatch) -> Passed:
        """Final norm, head and loss; the normed stream goes on to multi-token prediction."""
        assert x is not None
        weights, model = self._root_weights(), self.setting.model
        with in_module(names.NORM):
            x = norm(x, weights, names.NORM, model)
        return Passed(x if model.mtp_layers else None, self._loss(weights, x, batch.labels))

    def _loss(self, weights: Weights, x: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy summed over this rank's tokens; x [mb, S/(cp, tp), D] is normed, labels [mb, S] are whole."""
        setting = self.setting
        matrix = names.EMBEDDING if setting.model.tied_embeddings else names.HEAD
        with in_module(names.HEAD):
            logits = column_linear(x, weights[f"{matrix}.weight"], None, setting.vocab, setting.sp)
        with in_module(names.LOSS):
            return cross_entropy(logits, take(labels, setting.looked_up_positions), setting.model.vocab_size, setting.vocab)


def unit_parameters(model: Model, index: int) -> Sequence[Parameter]:
    """Of layer ``index``, multi-token-prediction layers counted from L on."""
    if index < model.num_layers:
        return layer_parameters(model, model.layers[index])
    return mtp_parameters(model) + layer_parameters(model, mtp_kind(model))


def root_parameters(model: Model, chunks: Sequence[ChunkPlan]) -> Sequence[Parameter]:
    """Embedding and head, as far as the chunks have them. A tied head and multi-token prediction need the table at the last chunk too,
    of which a rank that has both ends holds one."""
    first, last = any(chunk.first for chunk in chunks), any(chunk.last for chunk in chunks)
    found: tuple[Parameter, ...] = embedding_parameters(model) if first else ()
    if last:
        found += head_parameters(model)
        if not first and (model.tied_embeddings or model.mtp_layers):
            found += embedding_parameters(model)[:1]
    return found


def local_tensors(
    setting: Setting, chunks: Sequence[ChunkPlan], seed: int | None, drawn: torch.dtype, stored: torch.dtype, kept: torch.dtype
) -> dict[str, Tensor]:
    """This rank's part of its chunks' random parameters, by full name: drawn in ``drawn``, stored in ``stored``, buffers in ``kept``.
    Without a seed they are on the meta device: shapes and dtypes alone."""
    model, parameters = setting.model, all_parameters(setting.model)
    wanted = {f"{p.module}.{p.name}" for p in root_parameters(model, chunks)}
    indices = [index for chunk in chunks for index in chunk.layers]
    if any(chunk.last for chunk in chunks):
        indices += range(model.num_layers, model.num_layers + model.mtp_layers)
    for index in indices:
        wanted |= {names.layer(index, f"{p.module}.{p.name}") for p in unit_parameters(model, index)}
    found = {}
    for name in sorted(wanted):
        parameter = parameters[name]
        whole = torch.empty(parameter.shape, dtype=drawn, device="meta") if seed is None else initialised(name, parameter, seed, drawn)
        found[name] = local_part(whole, parameter, model, setting.holder).to(stored if parameter.trained else kept)
    return found
