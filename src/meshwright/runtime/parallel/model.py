"""A chunk of the model on a rank: consecutive layers, with the embedding if it is the first and norm, head and loss if it is the last.

Without a pipeline one chunk is the whole model. The chunk is the root unit of data parallelism; its layers are units of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from meshwright.runtime.cut import local_part
from meshwright.runtime.data_parallel.units import Unit, add_parameters, hold
from meshwright.runtime.initialise import initialised
from meshwright.runtime.parallel.elementwise import table_rows
from meshwright.runtime.parallel.layer import Layer, MtpLayer
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


@dataclass(frozen=True)
class ChunkOutput:
    """What one micro-batch gives.

    Attributes:
        hidden: the stream for the next chunk; None of the last.
        cross_entropy: summed over this rank's labels, the multi-token-prediction part (times its weight) included; None but of the last.
        balance: the layers' balance losses, summed; None without one.
        counts: by layer, how many of this rank's tokens chose each expert, int64 [E].
    """

    hidden: Tensor | None
    cross_entropy: Tensor | None
    balance: Tensor | None
    counts: dict[int, Tensor] = field(default_factory=dict)


class Chunk(nn.Module):
    """See the module's docstring.

    Args:
        tensors: this rank's part of every parameter of the chunk, by full name; see ``local_tensors``.
        mtp_weight: weight of the multi-token-prediction losses together.
    """

    def __init__(self, setting: Setting, plan: ChunkPlan, tensors: Mapping[str, Tensor], mtp_weight: float) -> None:
        super().__init__()
        self.setting, self.plan, self.mtp_weight = setting, plan, mtp_weight
        model = setting.model
        self.layers = nn.ModuleDict({str(index): self._layer(index, place, tensors) for place, index in enumerate(plan.layers)})
        if plan.last:
            for index in range(model.num_layers, model.num_layers + model.mtp_layers):
                self.layers[str(index)] = self._layer(index, None, tensors)
        add_parameters(self, {name: tensor for name, tensor in tensors.items() if not name.startswith("layers.")})

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
        """In the order of the forward, the root last."""
        model, layout = self.setting.model, self.setting.layout
        found = [
            Unit(name=f"layers.{index}", module=layer, held=hold(unit_parameters(model, int(index)), model, layout))
            for index, layer in self.layers.items()
        ]
        return [*found, Unit(name="root", module=self, held=hold(root_parameters(model, self.plan), model, layout))]

    def forward(self, batch: MicroBatch, received: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """``received``: the previous chunk's stream. Returns ChunkOutput's tensors, see ``unpacked``.

        A plain tuple: FSDP2 hooks the tensors that it finds in a module's output.
        """
        weights = self._root_weights()
        x = received if received is not None else self._embed(weights, batch)
        balances: list[Tensor | None] = []
        counts: list[Tensor | None] = []
        for index in self.plan.layers:
            x, balance, chosen = self.layers[str(index)](x, batch)
            balances.append(balance)
            counts.append(chosen)
        if not self.plan.last:
            return x, None, summed(balances), *counts
        with in_module(names.NORM):
            x = norm(x, weights, names.NORM, self.setting.model)
        total = self._loss(weights, x, batch.labels)
        for depth in range(self.setting.model.mtp_layers):
            x, balance, chosen = self._predict_later(weights, x, batch, depth)
            balances.append(balance)
            counts.append(chosen)
            later = shifted_labels(batch.labels, by=depth + 1)
            total = total + self.mtp_weight / self.setting.model.mtp_layers * self._loss(weights, x, later)
        return None, total, summed(balances), *counts

    def run(self, batch: MicroBatch, received: Tensor | None = None) -> ChunkOutput:
        """One micro-batch's forward."""
        hidden, total, balance, *counts = self(batch, received)
        found = {int(index): chosen for index, chosen in zip(self.layers, counts, strict=True) if chosen is not None}
        return ChunkOutput(hidden, total, balance, found)

    def _root_weights(self) -> Weights:
        return {name: tensor for name, tensor in self.named_parameters() if not name.startswith("layers.")}

    def _look_up(self, weights: Weights, tokens: Tensor) -> Tensor:
        """The rows of whole sequences' tokens [mb, S] for the stream: [mb, S/(cp, tp), D]."""
        setting = self.setting
        own = take(tokens, setting.looked_up_positions)
        with in_module(names.EMBEDDING):
            return embedding(own, weights[f"{names.EMBEDDING}.weight"], setting.vocab, setting.sp)

    def _embed(self, weights: Weights, batch: MicroBatch) -> Tensor:
        setting, model = self.setting, self.setting.model
        x = self._look_up(weights, batch.tokens)
        if model.positions == "learned":
            with in_module(names.POSITIONS):
                x = x + table_rows(weights[f"{names.POSITIONS}.weight"], setting.stream_positions.tensor)
        if model.embedding_norm:
            with in_module(names.EMBEDDING_NORM):
                x = norm(x, weights, names.EMBEDDING_NORM, model)
        return batch.drop(x, setting, -1, "embedding")

    def _loss(self, weights: Weights, x: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy summed over this rank's tokens; x [mb, S/(cp, tp), D] is normed, labels [mb, S] are whole."""
        setting = self.setting
        matrix = names.EMBEDDING if setting.model.tied_embeddings else names.HEAD
        with in_module(names.HEAD):
            logits = column_linear(x, weights[f"{matrix}.weight"], None, setting.vocab, setting.sp)
        with in_module(names.LOSS):
            return cross_entropy(logits, take(labels, setting.looked_up_positions), setting.model.vocab_size, setting.vocab)

    def _predict_later(self, weights: Weights, x: Tensor, batch: MicroBatch, depth: int) -> tuple[Tensor, ...]:
        later = self._look_up(weights, shifted_tokens(batch.tokens, depth + 1))
        output: tuple[Tensor, ...] = self.layers[str(self.setting.model.num_layers + depth)](x, batch, later)
        return output


def unit_parameters(model: Model, index: int) -> Sequence[Parameter]:
    """Of layer ``index``, multi-token-prediction layers counted from L on."""
    if index < model.num_layers:
        return layer_parameters(model, model.layers[index])
    return mtp_parameters(model) + layer_parameters(model, mtp_kind(model))


def root_parameters(model: Model, plan: ChunkPlan) -> Sequence[Parameter]:
    """Embedding and head, as far as the chunk has them. A tied head and multi-token prediction need the table at the last chunk too."""
    found: tuple[Parameter, ...] = embedding_parameters(model) if plan.first else ()
    if plan.last:
        found += head_parameters(model)
        if not plan.first and (model.tied_embeddings or model.mtp_layers):
            found += embedding_parameters(model)[:1]
    return found


def local_tensors(
    setting: Setting, plan: ChunkPlan, seed: int | None, drawn: torch.dtype, stored: torch.dtype, kept: torch.dtype
) -> dict[str, Tensor]:
    """This rank's part of the chunk's random parameters, by full name: drawn in ``drawn``, stored in ``stored``, buffers in ``kept``.
    Without a seed they are on the meta device: shapes and dtypes alone."""
    model, parameters = setting.model, all_parameters(setting.model)
    wanted = {f"{p.module}.{p.name}" for p in root_parameters(model, plan)}
    indices = [*plan.layers, *(range(model.num_layers, model.num_layers + model.mtp_layers) if plan.last else ())]
    for index in indices:
        wanted |= {names.layer(index, f"{p.module}.{p.name}") for p in unit_parameters(model, index)}
    found = {}
    for name in sorted(wanted):
        parameter = parameters[name]
        whole = torch.empty(parameter.shape, dtype=drawn, device="meta") if seed is None else initialised(name, parameter, seed, drawn)
        found[name] = local_part(whole, parameter, model, setting.holder).to(stored if parameter.trained else kept)
    return found
