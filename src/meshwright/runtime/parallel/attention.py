"""Attention with grouped heads on a rank: column-parallel q, k and v, the context-parallel core, the row-parallel output.

T = mb S/cp tokens; a tp rank has N/tp query heads and K/tp kv heads, or a copy of one where K < tp. Latent attention: mla.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.runtime.parallel import context, mla
from meshwright.runtime.parallel.attention_block import Rules
from meshwright.runtime.parallel.elementwise import split
from meshwright.runtime.parallel.linear import column_linear, row_linear, sum_over_copies
from meshwright.runtime.parallel.norm import rms_norm
from meshwright.runtime.parallel.rotary import HEADS_DIM, rotate, split_and_rotate
from meshwright.runtime.parallel.setting import MicroBatch, Setting
from meshwright.runtime.recompute import recomputed
from meshwright.runtime.reference.attention import score_scale
from meshwright.runtime.reference.weights import Weights
from meshwright.runtime.scope import in_module
from meshwright.spec import names
from meshwright.spec.model import LayerKind


def attention(setting: Setting, weights: Weights, x: Tensor, index: int, kind: LayerKind, batch: MicroBatch) -> Tensor:
    """Causal self-attention of the normed stream x [mb, S/(cp, tp), D], output projection included, of the same shape.

    With selective recomputation q, k and v are kept, and the core runs again in the backward.
    """
    project = mla.project if setting.model.attention.mla else _project
    q, k, v = project(setting, weights, x)
    rules = _rules(setting, index, kind, batch)
    sinks = weights.get(f"{names.SINKS}.weight")

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return context.attention(q, k, v, setting.context, rules, sinks)

    with in_module(names.CORE):
        out = recomputed(core, q, k, v) if setting.layout.recompute == "selective" else core(q, k, v)
    with in_module(names.OUT):
        return row_linear(out.flatten(HEADS_DIM), weights[f"{names.OUT}.weight"], weights.get(f"{names.OUT}.bias"), setting.tp, setting.sp)


def _project(setting: Setting, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [mb, S/cp, N/tp, H], k and v [mb, S/cp, K/tp, H], normed and turned by their global positions."""
    model, a = setting.model, setting.model.attention
    q_heads, kv_heads = a.num_heads // setting.tp.size, max(a.num_kv_heads // setting.tp.size, 1)
    with in_module(names.QKV):
        weight, bias = _summed_copies(setting, weights, q_heads * a.head_dim)
        heads = column_linear(x, weight, bias, setting.tp, setting.sp).unflatten(-1, (-1, a.head_dim))
    sizes = q_heads, kv_heads, kv_heads
    if setting.rotary is not None and not a.qk_norm:
        return split_and_rotate(heads, sizes, setting.rotary)
    q, k, v = split(heads, sizes, HEADS_DIM)
    if a.qk_norm:
        with in_module(names.Q_NORM):
            q = rms_norm(q, weights[f"{names.Q_NORM}.weight"], model.norm_eps)
        with in_module(names.K_NORM):
            k = rms_norm(k, weights[f"{names.K_NORM}.weight"], model.norm_eps)
    if setting.rotary is not None:
        q, k = (rotate(t, setting.rotary) for t in (q, k))
    return q, k, v


def _summed_copies(setting: Setting, weights: Weights, first_row: int) -> tuple[Tensor, Tensor | None]:
    """The projection's weight and bias. Under zero=3 gradients leave with every backward, so copies of kv heads are summed in it;
    zero=0 to 2 sum them with their own buckets."""
    weight, bias = weights[f"{names.QKV}.weight"], weights.get(f"{names.QKV}.bias")
    if setting.layout.zero < 3:
        return weight, bias
    summed = sum_over_copies([weight] if bias is None else [weight, bias], first_row, setting.groups["kv"])
    return summed[0], summed[1] if bias is not None else None


def _rules(setting: Setting, index: int, kind: LayerKind, batch: MicroBatch) -> Rules:
    drop = None if batch.dropout is None else _core_dropout(setting, index, batch)
    return Rules(scale=score_scale(setting.model), window=kind.window, slopes=setting.slopes, drop=drop)


def _core_dropout(setting: Setting, index: int, batch: MicroBatch):  # type: ignore[no-untyped-def]
    """Factors of the probabilities by sequence, head, query and key, as one device has them (reference/model.py)."""
    dropout = batch.dropout
    assert dropout is not None
    first_head = setting.tp.place * setting.model.attention.num_heads // setting.tp.size

    def factors(queries: Tensor, keys: Tensor, heads: Tensor) -> Tensor:
        rows = batch.token_index(queries, setting.seq)[:, None, :, None]
        columns = (first_head + heads)[:, None, None] * setting.seq + keys
        return dropout.at(index, "attention.core", rows, columns)(torch.ones((), dtype=torch.float64))

    return factors
