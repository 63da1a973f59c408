"""Causal attention over whole sequences by torch's fused kernel (FlashAttention-2, arXiv 2307.08691): no scores in memory.

It keeps what blocks that are merged keep (context.py): q, k, v, the output, and one statistic per query and head. k and v stay at their
own number of heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.runtime.parallel.attention_block import Rules

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def covers(q: Tensor, v: Tensor, rules: Rules, sinks: Tensor | None) -> bool:
    """Whether the kernel computes this case: values as wide as queries, and nothing but the causal mask between scores and softmax."""
    plain = rules.slopes is None and rules.drop is None and sinks is None
    return plain and (rules.window is None or rules.window >= q.shape[1]) and q.shape[-1] == v.shape[-1] and q.device.type == "cpu"


class _Flash(torch.autograd.Function):
    """The kernel's tensors are [B, heads, S, H]; views of ours suit it, and what it returns lies in memory as ours do."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        out, lse = _forward(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0.0, True, scale=scale)
        out = out.transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        *kept, lse = ctx.saved_tensors
        grads = _backward(*(x.transpose(1, 2) for x in (grad.contiguous(), *kept)), lse, 0.0, True, scale=ctx.scale)
        grad_q, grad_k, grad_v = (x.transpose(1, 2) for x in grads)
        return grad_q, grad_k, grad_v, None


def flash_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [B, S, N, H], k and v [B, S, K, H] to [B, S, N, H]; S is the whole sequence, in order. Sends nothing."""
    result: Tensor = _Flash.apply(q, k, v, scale)
    return result
