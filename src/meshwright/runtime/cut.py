"""The part of a whole parameter that one rank holds, before ZeRO: how ``Cut`` of spec/parameters.py is carried out.

Gradients of whole and of parts go through the same function when they are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.spec.model import Attention, Model
from meshwright.spec.parameters import Parameter


@dataclass(frozen=True)
class Place:
    """A rank's place in a group of this degree, counted from 0."""

    index: int = 0
    degree: int = 1

    def of(self, x: Tensor, dim: int) -> Tensor:
        """This place's part of x, which must divide evenly along dim."""
        size, rest = divmod(x.shape[dim], self.degree)
        assert rest == 0, f"{x.shape[dim]} along dim {dim} does not divide by {self.degree}"
        return x.narrow(dim, self.index * size, size)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Where a rank stands. padded_vocab: rows of the vocabulary after padding; None for none. vocab_cut: whether tp cuts them."""

    tp: Place = Place()
    ep: Place = Place()
    etp: Place = Place()
    padded_vocab: int | None = None
    vocab_cut: bool = True


def local_part(whole: Tensor, parameter: Parameter, model: Model, holder: Holder) -> Tensor:
    """What this rank holds of a parameter (or of its gradient), as a tensor of its own.

    Vocabulary rows past the end are zeros.
    """
    tp = holder.tp
    match parameter.cut:
        case "rows":
            part = _rows(whole, parameter.parts, tp)
        case "columns":
            part = tp.of(whole, 1)
        case "qkv":
            part = _qkv_rows(whole, model.attention, tp)
        case "vocab" if holder.padded_vocab is not None:
            padded = F.pad(whole, (0, 0, 0, holder.padded_vocab - whole.shape[0]))
            part = tp.of(padded, 0) if holder.vocab_cut else padded
        case "expert_rows" | "expert_columns" | "expert_whole":
            part = _expert(whole, parameter, model, holder)
        case _:
            part = whole
    return part.clone()


def _rows(whole: Tensor, parts: int, tp: Place) -> Tensor:
    """Each of the equal parts (gate, up) is cut by itself, and the rank's pieces lie one below the other again."""
    return tp.of(whole.unflatten(0, (parts, -1)), 1).flatten(0, 1)


def _qkv_rows(whole: Tensor, attention: Attention, tp: Place) -> Tensor:
    """The rank's query heads, then the key heads that they read, then the value heads.

    Where there are fewer kv heads than ranks, rank r holds a copy of kv head r K // tp.
    """
    N, K = attention.num_heads, attention.num_kv_heads
    heads = whole.unflatten(0, (N + 2 * K, attention.head_dim))
    q, k, v = heads.split((N, K, K))
    kv = tp if tp.degree <= K else Place(tp.index * K // tp.degree, K)
    return torch.cat((tp.of(q, 0), kv.of(k, 0), kv.of(v, 0))).flatten(0, 1)


def _expert(whole: Tensor, parameter: Parameter, model: Model, holder: Holder) -> Tensor:
    """Whole experts over ep, then each of them by row or by column over etp."""
    assert model.moe is not None
    experts = holder.ep.of(whole.unflatten(0, (model.moe.num_experts, parameter.parts, -1)), 0)
    if parameter.cut == "expert_rows":
        experts = holder.etp.of(experts, 2)
    elif parameter.cut == "expert_columns":
        experts = holder.etp.of(experts, 3)
    return experts.flatten(0, 2)
