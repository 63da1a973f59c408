"""Context-parallel attention: each cp rank holds S/cp tokens of q, k and v (DESIGN section 4.1).

ring, zigzag, striped (Liu et al., arXiv 2310.01889; Brandon et al., arXiv 2311.09431): k and v travel round the ring, and
in the backward k, v and their gradients. They differ in the positions held, not in what is sent. allgather (Llama 3, arXiv
2407.21783, section 3.3.2): k and v are gathered. ulysses (Jacobs et al., arXiv 2309.14509, section 3): heads are swapped
for sequence. usp: ulysses inside a zigzag ring.

Keeps q, k, v as they came in (for ulysses as swapped), the output, and one statistic per query and head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from meshwright.runtime import scope
from meshwright.runtime.groups import Axis
from meshwright.runtime.parallel.attention_block import (
    BackwardState,
    Merged,
    Rules,
    add_block,
    add_sinks,
    block_gradients,
    nothing_seen,
    sinks_gradient,
    start_backward,
)
from meshwright.runtime.parallel.comm import all_gather, all_to_all, reduce_scatter, start_shift
from meshwright.runtime.parallel.flash import covers, flash_attention
from meshwright.runtime.parallel.sequence import Positions

scope.transparent(__file__)

KEY_VALUE_TAG, GRADIENT_TAG = 0, 1


@dataclass(frozen=True, kw_only=True)
class ContextAxes:
    """How attention is cut over cp.

    Attributes:
        kind: of the layout. cp: the whole group. ring, ulysses: its two parts (of which one may have a single rank).
        positions: of the tokens of every ring rank, each [S / ring size], ulysses' cut undone; for allgather of every
            cp rank.
    """

    kind: str
    cp: Axis
    ring: Axis
    ulysses: Axis
    positions: tuple[Positions, ...]


def attention(q: Tensor, k: Tensor, v: Tensor, axes: ContextAxes, rules: Rules, sinks: Tensor | None = None) -> Tensor:
    """Causal attention over the whole sequence for the tokens at hand.

    q [B, S/cp, N, H], k [B, S/cp, K, H], v [B, S/cp, K, Hv] to [B, S/cp, N, Hv]; N, K local to the tp rank. rules.slopes and sinks are per
    q head of the tp rank; with ulysses each rank uses those of the heads that it gets.
    """
    heads = q.shape[2]
    if axes.ulysses.size > 1:
        q = swap_in(q, axes.ulysses)
        k, v = _swap_in_packed(k, v, axes.ulysses)
        sinks, rules = _own_heads(sinks, rules, axes.ulysses, heads)
    out = _core(q, k, v, sinks, axes, rules)
    if axes.ulysses.size > 1:
        out = swap_out(out, axes.ulysses)
    assert out.shape[2] == heads
    return out


def _core(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, axes: ContextAxes, rules: Rules) -> Tensor:
    """What computes a case: the fused kernel where the rank has whole sequences and the kernel can, else blocks that are merged."""
    if axes.kind == "allgather" and axes.cp.size > 1:
        out: Tensor = _Gathered.apply(q, k, v, sinks, axes, rules)
    elif axes.ring.size == 1 and covers(q, v, rules, sinks):
        out = flash_attention(q, k, v, rules.scale)
    else:
        out = _Ring.apply(q, k, v, sinks, axes, rules)
    return out


class _Ring(torch.autograd.Function):
    """Blocks of keys and values as they come round; with one rank the whole of attention."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, axes: ContextAxes, rules: Rules) -> Tensor:
        ctx.origin, ctx.axes, ctx.rules = scope.origin(), axes, rules
        merged = nothing_seen(q, v.shape[-1])
        queries = axes.positions[axes.ring.place]
        for source, packed in _travel(torch.cat((k, v), -1), axes.ring) if axes.ring.size > 1 else [(0, None)]:
            keys, values = (k, v) if packed is None else packed.split((k.shape[-1], v.shape[-1]), -1)
            add_block(merged, q, keys, values, queries, axes.positions[source], rules)
        return _finish(ctx, merged, q, k, v, sinks)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        k, v, sinks, state = _saved(ctx, grad)
        ring, positions = ctx.axes.ring, ctx.axes.positions
        width = (k.shape[-1], v.shape[-1])
        with scope.back_at(ctx.origin, "backward_input"):
            if ring.size == 1:
                grad_k, grad_v = block_gradients(state, k, v, positions[0], ctx.rules)
            else:
                grad_k, grad_v = _ring_gradients(state, torch.cat((k, v), -1), width, ring, positions, ctx.rules).split(width, -1)
        return _gradients(state, grad_k, grad_v, k, v, sinks)


def _travel(packed: Tensor, ring: Axis) -> Iterator[tuple[int, Tensor]]:
    """(ring rank that it belongs to, its k and v), the own ones first; the next ones are on their way meanwhile: n-1 exchanges."""
    for step in range(ring.size):
        following = start_shift(packed, ring, KEY_VALUE_TAG) if step < ring.size - 1 else None
        yield (ring.place - step) % ring.size, packed
        if following is not None:
            packed = following.wait()


def _ring_gradients(
    state: BackwardState, packed: Tensor, width: tuple[int, int], ring: Axis, positions: tuple[Positions, ...], rules: Rules
) -> Tensor:
    """The gradient of this rank's packed k and v: each rank adds its part as it passes, and the last exchange brings it home."""
    travelling = None
    for source, block in _travel(packed, ring):
        keys, values = block.split(width, -1)
        part = torch.cat(block_gradients(state, keys, values, positions[source], rules), -1)
        if travelling is not None:
            part = part + travelling.wait()
        travelling = start_shift(part, ring, GRADIENT_TAG)
    assert travelling is not None
    return travelling.wait()


class _Gathered(torch.autograd.Function):
    """All keys and values on every rank; they are kept sharded and gathered again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, axes: ContextAxes, rules: Rules) -> Tensor:
        ctx.origin, ctx.axes, ctx.rules = scope.origin(), axes, rules
        merged = nothing_seen(q, v.shape[-1])
        queries = axes.positions[axes.cp.place]
        for keys, values, positions in _gathered_blocks(k, v, axes):
            add_block(merged, q, keys, values, queries, positions, rules)
        return _finish(ctx, merged, q, k, v, sinks)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        k, v, sinks, state = _saved(ctx, grad)
        with scope.back_at(ctx.origin, "backward_input"):
            parts = [
                torch.cat(block_gradients(state, keys, values, positions, ctx.rules), -1).to(k.dtype)
                for keys, values, positions in _gathered_blocks(k, v, ctx.axes)
            ]
            packed = reduce_scatter(torch.cat(parts, 1), ctx.axes.cp, 1)
        grad_k, grad_v = packed.split((k.shape[-1], v.shape[-1]), -1)
        return _gradients(state, grad_k, grad_v, k, v, sinks)


def _gathered_blocks(k: Tensor, v: Tensor, axes: ContextAxes) -> Iterator[tuple[Tensor, Tensor, Positions]]:
    """Each cp rank's keys, values and positions, after one gather of both packed."""
    whole = all_gather(torch.cat((k, v), -1), axes.cp, 1)
    for block, positions in zip(whole.chunk(axes.cp.size, 1), axes.positions, strict=True):
        keys, values = block.split((k.shape[-1], v.shape[-1]), -1)
        yield keys, values, positions


def _finish(ctx: Any, merged: Merged, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is not None:
        add_sinks(merged, sinks)
    out = merged.out.transpose(1, 2).to(v.dtype).contiguous()
    ctx.save_for_backward(q, k, v, out, merged.lse, sinks)
    return out


def _saved(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, BackwardState]:
    q, k, v, out, lse, sinks = ctx.saved_tensors
    place = ctx.axes.cp.place if ctx.axes.kind == "allgather" else ctx.axes.ring.place
    return k, v, sinks, start_backward(q, ctx.axes.positions[place], out, lse, grad)


def _gradients(
    state: BackwardState, grad_k: Tensor, grad_v: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
) -> tuple[Tensor | None, ...]:
    grad_sinks = None if sinks is None else sinks_gradient(sinks, state.lse, state.delta)
    return state.grad_q.to(state.q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), grad_sinks, None, None


def swap_in(x: Tensor, ulysses: Axis) -> Tensor:
    """[B, S, N, H] to [B, S u, N/u, H]: all tokens of the ulysses ranks, for this rank's share of the heads."""
    size = ulysses.size
    by_rank = x.unflatten(2, (size, -1)).movedim(2, 0)  # [u, B, S, N/u, H]: the share of each rank
    received = all_to_all(by_rank.flatten(0, 1), ulysses)
    return received.unflatten(0, (size, -1)).movedim(0, 1).flatten(1, 2)


def swap_out(x: Tensor, ulysses: Axis) -> Tensor:
    """The way back: [B, S u, N/u, H] to [B, S, N, H]."""
    size = ulysses.size
    by_rank = x.unflatten(1, (size, -1)).movedim(1, 0)  # [u, B, S, N/u, H]: the tokens of each rank
    received = all_to_all(by_rank.flatten(0, 1), ulysses)
    return received.unflatten(0, (size, -1)).movedim(0, 2).flatten(2, 3)


def _swap_in_packed(k: Tensor, v: Tensor, ulysses: Axis) -> tuple[Tensor, Tensor]:
    """k and v in one all_to_all; a kv head that several ranks need travels to each of them."""
    packed = torch.cat((k, v), -1)
    copies = max(ulysses.size // packed.shape[2], 1)
    received = swap_in(packed.repeat_interleave(copies, 2), ulysses)
    keys, values = received.split((k.shape[-1], v.shape[-1]), -1)
    return keys, values


def _own_heads(sinks: Tensor | None, rules: Rules, ulysses: Axis, heads: int) -> tuple[Tensor | None, Rules]:
    """Per-head numbers of the heads that this rank gets; the gradient of the sinks is then a summand of the group's ranks."""
    slopes = None if rules.slopes is None else rules.slopes.chunk(ulysses.size)[ulysses.place]
    own = None if sinks is None else sinks.chunk(ulysses.size)[ulysses.place]
    return own, replace(rules, slopes=slopes, first_head=ulysses.place * heads // ulysses.size)
