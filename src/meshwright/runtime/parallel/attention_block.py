"""Attention of some queries over some keys, by blocks that are merged: online softmax, and its backward from the merged statistics.

Milakov and Gimelshein (arXiv 1805.02867); Dao et al., FlashAttention (arXiv 2205.14135), section 3.1 and appendix B.4.
Tensors are [B, S, heads, H]; q head n reads kv head n // (N / K). Everything is computed in float32 at least.

With scores s = scale q k^T (+ bias, masked), lse = log sum exp s over all keys that a query sees, p = exp(s - lse):
    out = p v,   delta = sum(dout out),   ds = p (dout v^T - delta),   dq = scale ds k,   dk = scale ds^T q,   dv = p^T dout
Every term is a sum over keys, so a block's part can be computed alone as soon as lse and out are of all keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from meshwright.runtime.parallel.sequence import Positions


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a query sees, and how.

    Attributes:
        scale: on the scores. window: a query sees its own and earlier tokens, of which the last ``window``; None for all.
        slopes: ALiBi, one per local q head [N].
        drop: dropout factors [B or 1, N or 1, Sq, Sk] of the probabilities (0, or 1 / (1 - rate)) for these positions of queries and
            keys and these q heads [N] of the tp rank; a function of places, so that every layout drops the same.
        first_head: number, among the q heads of the tp rank, of the first one at hand (ulysses shares them out).
    """

    scale: float
    window: int | None = None
    slopes: Tensor | None = None
    drop: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    first_head: int = 0

    def seen(self, queries: Positions, keys: Positions) -> Tensor | None:
        """bool [Sq, Sk], None where every query sees every key."""
        nearest = queries.places.min() - keys.places.max()
        farthest = queries.places.max() - keys.places.min()
        if nearest >= 0 and (self.window is None or farthest < self.window):
            return None
        distance = queries.tensor[:, None] - keys.tensor[None, :]
        return distance >= 0 if self.window is None else (distance >= 0) & (distance < self.window)


@dataclass(slots=True)
class Merged:
    """The result over the keys met so far. out [B, N, Sq, Hv] is normalised; lse [B, N, Sq], -inf where nothing was seen."""

    out: Tensor
    lse: Tensor

    def add(self, out: Tensor, lse: Tensor, rows: slice) -> None:
        """Take in another block's result for some of the queries."""
        old = self.lse[..., rows]
        total = torch.logaddexp(old, lse)
        # A query that has seen nothing yet has weight 0, not nan.
        safe = total.masked_fill(total == -math.inf, 0.0)
        self.out[..., rows, :] = self.out[..., rows, :] * (old - safe).exp()[..., None] + out * (lse - safe).exp()[..., None]
        self.lse[..., rows] = total


def nothing_seen(q: Tensor, v_dim: int) -> Merged:
    """Before the first block; q [B, Sq, N, H]."""
    batch, queries, heads, _ = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    out = q.new_zeros((batch, heads, queries, v_dim), dtype=dtype)
    return Merged(out, q.new_full((batch, heads, queries), -math.inf, dtype=dtype))


def relevant(queries: Positions, keys: Positions, window: int | None) -> tuple[slice, slice] | None:
    """The queries that see any of these keys, and the keys that any of them sees; None if there are none.

    The whole stretch from the first to the last of them: exact for contiguous chunks and for zigzag's two, a superset else.
    """
    if not len(queries) or not len(keys):
        return None
    some = queries.places >= keys.places.min()
    if window is not None:
        some &= queries.places < keys.places.max() + window
    rows = _stretch(some)
    if rows is None:
        return None
    needed = keys.places <= queries.places[rows].max()
    if window is not None:
        needed &= keys.places > queries.places[rows].min() - window
    columns = _stretch(needed)
    return None if columns is None else (rows, columns)


def _stretch(chosen: np.ndarray) -> slice | None:
    (places,) = chosen.nonzero()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else None


def add_block(merged: Merged, q: Tensor, k: Tensor, v: Tensor, queries: Positions, keys: Positions, rules: Rules) -> None:
    """Attend to one block of keys and merge it in. q [B, Sq, N, H], k [B, Sk, K, H], v [B, Sk, K, Hv]; positions [Sq], [Sk]."""
    stretch = relevant(queries, keys, rules.window)
    if stretch is None:
        return
    rows, columns = stretch
    q, queries = q[:, rows], queries[rows]
    k, v, keys = k[:, columns], v[:, columns], keys[columns]
    scores, drop = _scores(q, k, queries, keys, rules)
    lse = scores.logsumexp(-1)
    probabilities = (scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None]).exp()
    if drop is not None:
        probabilities = probabilities * drop
    merged.add(probabilities @ _by_head(v, q.shape[2], probabilities.dtype), lse, rows)


def add_sinks(merged: Merged, sinks: Tensor) -> None:
    """One logit per head [N] in every denominator, with no value (gpt-oss)."""
    total = torch.logaddexp(merged.lse, sinks.to(merged.lse.dtype)[None, :, None])
    merged.out *= (merged.lse - total).exp()[..., None]
    merged.lse = total


def sinks_gradient(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """[N]: a sink's probability exp(sink - lse) times (0 - delta), summed over queries."""
    return -((sinks.to(lse.dtype)[None, :, None] - lse).exp() * delta).sum((0, 2)).to(sinks.dtype)


@dataclass(slots=True)
class BackwardState:
    """What the backward of every block needs. grad, lse, delta are [B, N, Sq(, Hv)], of all keys; grad_q is summed up here."""

    q: Tensor
    queries: Positions
    grad: Tensor
    lse: Tensor
    delta: Tensor
    grad_q: Tensor


def start_backward(q: Tensor, queries: Positions, out: Tensor, lse: Tensor, grad: Tensor) -> BackwardState:
    """q [B, Sq, N, H]; out and its gradient [B, Sq, N, Hv]; lse [B, N, Sq]."""
    grad = grad.transpose(1, 2).to(lse.dtype)
    delta = (grad * out.transpose(1, 2)).sum(-1)
    return BackwardState(q, queries, grad, lse, delta, torch.zeros_like(q, dtype=lse.dtype))


def block_gradients(state: BackwardState, k: Tensor, v: Tensor, keys: Positions, rules: Rules) -> tuple[Tensor, Tensor]:
    """Gradients [B, Sk, K, H], [B, Sk, K, Hv] of one block's keys and values, in the statistics' dtype; adds to ``state.grad_q``."""
    grad_k, grad_v = torch.zeros_like(k, dtype=state.lse.dtype), torch.zeros_like(v, dtype=state.lse.dtype)
    stretch = relevant(state.queries, keys, rules.window)
    if stretch is None:
        return grad_k, grad_v
    rows, columns = stretch
    q, grad = state.q[:, rows], state.grad[..., rows, :]
    k_part, v_part = k[:, columns], v[:, columns]
    scores, drop = _scores(q, k_part, state.queries[rows], keys[columns], rules)
    probabilities = (scores - state.lse[..., rows, None]).exp()
    heads = q.shape[2]
    dropped = probabilities if drop is None else probabilities * drop
    grad_v[:, columns] = _by_kv_head(dropped.transpose(-1, -2) @ grad, v.shape[2])
    grad_p = grad @ _by_head(v_part, heads, grad.dtype).transpose(-1, -2)
    if drop is not None:
        grad_p = grad_p * drop
    grad_s = probabilities * (grad_p - state.delta[..., rows, None]) * rules.scale
    state.grad_q[:, rows] += (grad_s @ _by_head(k_part, heads, grad.dtype)).transpose(1, 2)
    grad_k[:, columns] = _by_kv_head(grad_s.transpose(-1, -2) @ q.transpose(1, 2).to(grad.dtype), k.shape[2])
    return grad_k, grad_v


def _scores(q: Tensor, k: Tensor, queries: Positions, keys: Positions, rules: Rules) -> tuple[Tensor, Tensor | None]:
    """Masked scores [B, N, Sq, Sk], and dropout's factors."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    scores = q.transpose(1, 2).to(dtype) @ _by_head(k, q.shape[2], dtype).transpose(-1, -2) * rules.scale
    if rules.slopes is not None:
        distance = (keys.tensor[None, :] - queries.tensor[:, None]).to(dtype)
        scores += rules.slopes.to(dtype)[:, None, None] * distance
    seen = rules.seen(queries, keys)
    if seen is not None:
        scores.masked_fill_(~seen, -math.inf)
    if rules.drop is None:
        return scores, None
    factors = rules.drop(queries.tensor, keys.tensor, torch.arange(rules.first_head, rules.first_head + q.shape[2]))
    return scores, factors.to(scores.dtype)


def _by_head(kv: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """[B, S, K, H] to [B, N, S, H]: each q head's keys or values."""
    wide = kv.transpose(1, 2).to(dtype)
    return wide if heads == kv.shape[2] else wide.repeat_interleave(heads // kv.shape[2], dim=1)


def _by_kv_head(grad: Tensor, kv_heads: int) -> Tensor:
    """[B, N, S, H] to [B, S, K, H]: summed over the q heads of each kv head."""
    if grad.shape[1] != kv_heads:
        grad = grad.unflatten(1, (kv_heads, -1)).sum(2)
    return grad.transpose(1, 2)
