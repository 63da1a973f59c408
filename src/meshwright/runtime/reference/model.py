"""The Transformer from tokens to logits, and its loss, on one device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.errors import InputError, Mistake
from meshwright.runtime.dropout import Dropout, Site
from meshwright.runtime.reference.attention import Tables, alibi_bias, alibi_slopes, attend, may_see, queries_keys_values, score_scale
from meshwright.runtime.reference.loss import cross_entropy, shifted_labels, shifted_tokens
from meshwright.runtime.reference.mlp import mlp
from meshwright.runtime.reference.moe import Routing, balance_loss, balance_statistics, moe_block
from meshwright.runtime.reference.norm import norm, rms_norm
from meshwright.runtime.reference.rope import rope_tables
from meshwright.runtime.reference.weights import Weights, linear, unit
from meshwright.spec import names
from meshwright.spec.model import LayerKind, Model
from meshwright.spec.parameters import mtp_kind

MTP_LOSS_WEIGHT = 0.3
"""lambda of the multi-token-prediction loss: DeepSeek-V3 (arXiv 2412.19437), section 4.2, first 10T tokens (0.1 after)."""


@dataclass(frozen=True)
class Output:
    """What one forward pass gives.

    Attributes:
        logits: [B, S, V]. mtp_logits: the same for each multi-token-prediction layer.
        routings: by layer index, for the MoE layers (a multi-token-prediction layer k has index L + k).
    """

    logits: Tensor
    mtp_logits: tuple[Tensor, ...] = ()
    routings: dict[int, Routing] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What all layers of one forward pass share: positions [S], the rope tables, which tokens these are, dropout."""

    model: Model
    positions: Tensor
    tables: Tables
    token_index: Tensor  # int64 [B, S], unique in the step; only dropout asks
    dropout: Dropout | None

    def drop(self, x: Tensor, layer: int, site: Site) -> Tensor:
        """Dropout over channels: x [B, S, D]."""
        if self.dropout is None:
            return x
        return self.dropout.at(layer, site, self.token_index[..., None], torch.arange(x.shape[-1]))(x)


def forward(model: Model, weights: Weights, tokens: Tensor, first_sequence: int = 0, dropout: Dropout | None = None) -> Output:
    """Logits of whole sequences.

    Args:
        weights: every parameter of spec/parameters.py's ``all_parameters``, by full name.
        tokens: int64 [B, S], positions 0 to S - 1.
        first_sequence: index in the step of the first sequence, and dropout: None for none.
    """
    context = _context(model, weights, tokens, first_sequence, dropout)
    routings: dict[int, Routing] = {}
    hidden = embed(context, weights, tokens)
    for index, kind in enumerate(model.layers):
        hidden, routing = decoder_layer(context, unit(weights, names.layer(index)), hidden, index, kind)
        if routing is not None:
            routings[index] = routing
    hidden = norm(hidden, weights, names.NORM, model)
    logits = head(hidden, weights, model)
    mtp_logits = []
    for depth in range(model.mtp_layers):
        hidden, routing = mtp_layer(context, weights, hidden, tokens, depth)
        if routing is not None:
            routings[model.num_layers + depth] = routing
        mtp_logits.append(head(hidden, weights, model))
    return Output(logits, tuple(mtp_logits), routings)


def loss(
    model: Model, output: Output, labels: Tensor, count: Tensor | float, micro_batches: int = 1, mtp_weight: float = MTP_LOSS_WEIGHT
) -> Tensor:
    """This micro-batch's part of the step's loss: cross-entropy, multi-token prediction, balance of the experts.

    Args:
        labels: int64 [B, S], already shifted by one.
        count: valid labels of the whole step. micro_batches: of the whole step; the balance loss is a mean over them.
        mtp_weight: lambda; the mean over depths is taken (DeepSeek-V3, equation 25, T there = count here).
    """
    total = cross_entropy(output.logits, labels, count)
    for depth, logits in enumerate(output.mtp_logits):
        deeper = shifted_labels(labels, by=depth + 1)
        total = total + mtp_weight / model.mtp_layers * cross_entropy(logits, deeper, count)
    if model.moe and model.moe.aux_loss_coefficient:
        total = total + model.moe.aux_loss_coefficient * auxiliary_loss(model, output) / micro_batches
    return total


def auxiliary_loss(model: Model, output: Output) -> Tensor:
    """The balance losses of all MoE layers of one micro-batch, summed: each layer for itself, as the Switch Transformer and Megatron-LM do.

    (transformers multiplies means over all layers together, which no layer could know before the last.)

    Raises:
        InputError: for a sigmoid router, whose mean probabilities have no agreed meaning (DeepSeek-V3's own loss is another one).
    """
    assert model.moe is not None
    if model.moe.score == "sigmoid":
        legal, hint = "0 with moe.score = sigmoid", "moe.selection_bias keeps such experts' loads even"
        raise InputError([Mistake(model.source or model.name, "moe.aux_loss_coefficient", model.moe.aux_loss_coefficient, legal, hint)])
    losses = [balance_loss(balance_statistics(r, model.moe.num_experts), len(r.logits)) for r in output.routings.values()]
    return torch.stack(losses).sum()


def embed(context: Context, weights: Weights, tokens: Tensor) -> Tensor:
    """[B, S] to [B, S, D]: the tokens' rows, plus learned positions, normed where the model does that here."""
    model = context.model
    x = F.embedding(tokens, weights[f"{names.EMBEDDING}.weight"])
    if model.positions == "learned":
        x = x + F.embedding(context.positions, weights[f"{names.POSITIONS}.weight"])
    if model.embedding_norm:
        x = norm(x, weights, names.EMBEDDING_NORM, model)
    return context.drop(x, -1, "embedding")


def decoder_layer(context: Context, weights: Weights, x: Tensor, index: int, kind: LayerKind) -> tuple[Tensor, Routing | None]:
    """Attention, then MLP or experts, each on a norm of the residual stream and added to it. ``weights`` are this layer's."""
    routing = None
    model = context.model
    out = attention(context, weights, norm(x, weights, names.ATTENTION_NORM, model), index, kind)
    x = x + context.drop(out, index, "attention.out")
    if kind.moe:
        out, routing = moe_block(norm(x, weights, names.MOE_NORM, model), weights, model)
    else:
        out = mlp(norm(x, weights, names.MLP_NORM, model), weights, names.GATE_UP, names.DOWN, model)
    return x + context.drop(out, index, "mlp.down"), routing


def attention(context: Context, weights: Weights, x: Tensor, index: int, kind: LayerKind) -> Tensor:
    """Causal self-attention of the normed x [B, S, D], output projection included."""
    model, positions = context.model, context.positions
    q, k, v = queries_keys_values(x, weights, model, context.tables)
    allowed = may_see(positions, positions, kind.window)
    bias = alibi_bias(alibi_slopes(model.attention.num_heads), positions, positions, q.dtype) if model.positions == "alibi" else None
    sinks = weights[f"{names.SINKS}.weight"] if model.attention.sinks else None
    drop = None
    if context.dropout is not None:
        column = torch.arange(q.shape[2])[:, None] * len(positions) + positions  # [N, Sk]
        drop = context.dropout.at(index, "attention.core", context.token_index[:, None, :, None], column[:, None, :])
    out = attend(q, k, v, score_scale(model), allowed, bias, sinks, drop)
    return linear(out.flatten(-2), weights, names.OUT)


def head(hidden: Tensor, weights: Weights, model: Model) -> Tensor:
    """[B, S, D], already normed, to logits [B, S, V]; a tied head is the embedding's matrix."""
    matrix = names.EMBEDDING if model.tied_embeddings else names.HEAD
    return F.linear(hidden, weights[f"{matrix}.weight"])


def mtp_layer(context: Context, weights: Weights, hidden: Tensor, tokens: Tensor, depth: int) -> tuple[Tensor, Routing | None]:
    """The hidden state for the head, one token deeper (DeepSeek-V3, section 2.2, equations 21-23; depth 0 is their k = 1).

    Position i joins the hidden state of depth - 1, normed as its head sees it, with the embedding of token i + depth + 1.
    """
    model, index = context.model, context.model.num_layers + depth
    own = unit(weights, names.layer(index))
    later = F.embedding(shifted_tokens(tokens, depth + 1), weights[f"{names.EMBEDDING}.weight"])
    both = [
        rms_norm(hidden, own[f"{names.MTP_NORM}.weight_hidden"], model.norm_eps),
        rms_norm(later, own[f"{names.MTP_NORM}.weight_embedding"], model.norm_eps),
    ]
    x = linear(torch.cat(both, dim=-1), own, names.MTP_PROJECTION)
    x, routing = decoder_layer(context, own, x, index, mtp_kind(model))
    return rms_norm(x, own[f"{names.MTP_NORM}.weight_head"], model.norm_eps), routing


def _context(model: Model, weights: Weights, tokens: Tensor, first_sequence: int, dropout: Dropout | None) -> Context:
    sequences, length = tokens.shape
    positions = torch.arange(length)
    dtype = weights[f"{names.EMBEDDING}.weight"].dtype
    tables = rope_tables(model, positions, length, dtype) if model.positions == "rope" else None
    token_index = (first_sequence + torch.arange(sequences))[:, None] * length + positions
    return Context(model, positions, tables, token_index, dropout)
