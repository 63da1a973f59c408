"""What all layers of a rank share: the model and layout, the rank's groups, and which tokens it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.runtime.cut import Holder, Place
from meshwright.runtime.dropout import Dropout, Site
from meshwright.runtime.groups import Axis, ProcessGroups, alone
from meshwright.runtime.parallel.context import ContextAxes
from meshwright.runtime.parallel.elementwise import dropped
from meshwright.runtime.parallel.experts import ExpertAxes, Load
from meshwright.runtime.parallel.rotary import Rotary, rotary
from meshwright.runtime.parallel.sequence import Positions, held_positions, ring_positions
from meshwright.runtime.reference.attention import alibi_slopes
from meshwright.runtime.reference.rope import rope_tables
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.rules.tensor import padded_vocab


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A rank's place in the layout, for sequences of one length.

    Attributes:
        seq: S. positions: [S/cp], of the tokens that the rank's cp place holds.
        stream_positions: of the tokens of the residual stream, S/(cp tp) of them with sp, else the same.
        context: how attention is cut over cp. rotary: of the tokens at ``positions``; None without rotary positions.
        slopes: ALiBi's, of the q heads of the tp rank; None without.
        vocab: the axis over which the vocabulary is cut: tp, or an axis of one rank.
    """

    model: Model
    layout: Layout
    groups: ProcessGroups
    seq: int
    positions: Positions
    stream_positions: Positions
    context: ContextAxes
    rotary: Rotary | None
    slopes: Tensor | None
    vocab: Axis

    @property
    def tp(self) -> Axis:
        return self.groups["tp"]

    @property
    def cp(self) -> Axis:
        return self.groups["cp"]

    @property
    def sp(self) -> bool:
        return self.layout.sp and self.layout.tp > 1

    @property
    def experts(self) -> ExpertAxes:
        return ExpertAxes(ep=self.groups["ep"], etp=self.groups["etp"], sp=self.sp)

    @property
    def holder(self) -> Holder:
        """How this rank cuts parameters."""
        return Holder(
            tp=_place(self.groups["tp"]), ep=_place(self.groups["ep"]), etp=_place(self.groups["etp"]),
            padded_vocab=int(padded_vocab(self.model, self.layout)), vocab_cut=self.layout.vocab,
        )  # fmt: skip

    @property
    def looked_up_positions(self) -> Positions:
        """Tokens whose rows this rank looks up, and whose logits it computes: its stream's where the vocabulary is not cut."""
        return self.positions if self.layout.vocab else self.stream_positions


def make_setting(model: Model, layout: Layout, groups: ProcessGroups, seq: int, dtype: torch.dtype) -> Setting:
    """The setting of this rank; dtype: of activations, hence of the rotary tables."""
    cp, tp, ring = groups["cp"], groups["tp"], groups["ring"]
    positions = held_positions(layout, cp.place, seq)
    pieces = cp.size if layout.cp_kind == "allgather" else ring.size
    context = ContextAxes(
        kind=layout.cp_kind, cp=cp, ring=ring, ulysses=groups["ulysses"],
        positions=tuple(ring_positions(layout.cp_kind, pieces, place, seq) for place in range(pieces)),
    )  # fmt: skip
    return Setting(
        model=model, layout=layout, groups=groups, seq=seq, positions=positions,
        stream_positions=stream_positions(layout, positions, tp.place),
        context=context,
        rotary=rotary(rope_tables(model, positions.tensor, seq, dtype), model.rope.interleaved) if model.positions == "rope" else None,
        slopes=alibi_slopes(model.attention.num_heads).chunk(tp.size)[tp.place] if model.positions == "alibi" else None,
        vocab=tp if layout.vocab else alone("tp", tp.ranks[tp.place]),
    )  # fmt: skip


def stream_positions(layout: Layout, held: Positions, tp_rank: int) -> Positions:
    """Those of a cp rank's tokens that one of its tp ranks keeps between the pairs of layers: with sp 1/tp of them, else all."""
    size = len(held) // layout.tp
    return held[tp_rank * size : (tp_rank + 1) * size] if layout.sp else held


def _place(axis: Axis) -> Place:
    return Place(axis.place, axis.size)


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """The tokens of one micro-batch, whole sequences int64 [mb, S] on every rank of its cp and tp; labels are shifted already.

    Attributes:
        first_sequence: index in the step of the first sequence. dropout: of this step; None for none.
        experts: by layer index int64 [mb, S, k], taken instead of the router's choice; None for its own.
        load: for a layer's index, the copies that are sent in place of the router's numbers; None for the router's.
    """

    tokens: Tensor
    labels: Tensor
    first_sequence: int = 0
    dropout: Dropout | None = None
    experts: Mapping[int, Tensor] | None = None
    load: Callable[[int], Load | None] = lambda layer: None

    def token_index(self, positions: Tensor, seq: int) -> Tensor:
        """int64 [mb, len(positions)] of positions int64 [S or a part], unique in the step; only dropout asks."""
        return (self.first_sequence + torch.arange(len(self.tokens)))[:, None] * seq + positions

    def drop(self, x: Tensor, setting: Setting, layer: int, site: Site) -> Tensor:
        """Dropout over the channels of the stream: x [mb, S/(cp, tp), D]."""
        if self.dropout is None:
            return x
        rows = self.token_index(setting.stream_positions.tensor, setting.seq)[..., None]
        return dropped(x, self.dropout.at(layer, site, rows, torch.arange(x.shape[-1])))
