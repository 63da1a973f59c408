"""The fused attention kernel against softmax over all keys: outputs, gradients, bytes kept, and which cases it may take."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from meshwright.runtime import saved_bytes
from meshwright.runtime.parallel.attention_block import Rules
from meshwright.runtime.parallel.flash import covers, flash_attention
from meshwright.runtime.scope import in_module
from runtime.parallel.sharded import close, leaf, random

B, H, SCALE = 2, 6, 0.3


def whole_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
    scores = torch.einsum("bqnh,bknh->bnqk", q, k) * SCALE
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("bnqk,bknh->bqnh", scores.masked_fill(later, -math.inf).softmax(-1), v)


@pytest.mark.parametrize(("seq", "heads", "kv_heads"), [(1, 2, 2), (7, 4, 4), (33, 6, 3), (40, 8, 1)])
def test_equals_softmax_over_all_keys(seq: int, heads: int, kv_heads: int) -> None:
    shapes = [(B, seq, heads, H), (B, seq, kv_heads, H), (B, seq, kv_heads, H)]
    plain = [leaf(random(*shape, seed=seed)) for seed, shape in enumerate(shapes)]
    mine = [leaf(x) for x in plain]
    with saved_bytes.measured([]) as found, in_module("block"):
        result = flash_attention(*mine, SCALE)
    expected = whole_attention(*plain)
    close(result, expected)
    upstream = random(*expected.shape, seed=9)
    for ours, theirs in zip(torch.autograd.grad(result, mine, upstream), torch.autograd.grad(expected, plain, upstream), strict=True):
        close(ours, theirs)
    # q and the output; k and v at their own number of heads; one statistic per query and head
    assert found["block"] == 8 * B * seq * (2 * heads * H + 2 * kv_heads * H + heads)


def test_takes_a_gradient_that_lies_in_memory_otherwise() -> None:
    q, k, v = (leaf(random(B, 5, 2, H, seed=seed)) for seed in range(3))
    plain = [leaf(x) for x in (q, k, v)]
    flash_attention(q, k, v, SCALE).sum().backward()  # the gradient of a sum is one number, seen everywhere
    whole_attention(*plain).sum().backward()
    for mine, theirs in zip((q, k, v), plain, strict=True):
        close(mine.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_keeps_its_statistic_in_float32(dtype: torch.dtype) -> None:
    q, k, v = (random(B, 16, 2, H, seed=seed, dtype=dtype) for seed in range(3))
    expected = whole_attention(q.double(), k.double(), v.double())
    q.requires_grad_()
    with saved_bytes.measured([]) as found, in_module("block"):
        result = flash_attention(q, k, v, SCALE)
    # of the largest value: probabilities, which sum to 1, and the output are rounded to the dtype (2^-8 each in bf16, 2^-24 in float32),
    # and some roundings of float32's are inside
    bound = {torch.bfloat16: 2**-7, torch.float32: 2**-20}[dtype] * float(v.double().abs().max())
    assert (result.double() - expected).abs().max() < bound
    assert found["block"] == q.element_size() * 4 * q.numel() + 4 * B * 16 * 2


def test_leaves_other_cases_to_blocks() -> None:
    q, v, wide = random(B, 8, 2, H), random(B, 8, 2, H), random(B, 8, 2, H + 2)
    rules = Rules(scale=SCALE)
    assert covers(q, v, rules, None)
    assert covers(q, v, replace(rules, window=8), None)  # as many tokens as there are
    assert not covers(q, v, replace(rules, window=7), None)
    assert not covers(q, v, replace(rules, slopes=random(2)), None)
    assert not covers(q, v, replace(rules, drop=lambda *places: random(1)), None)
    assert not covers(q, v, rules, random(2))
    assert not covers(q, wide, rules, None)
    assert not covers(q.to("meta"), v.to("meta"), rules, None)  # another device has another kernel
