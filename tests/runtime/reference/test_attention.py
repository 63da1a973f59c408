"""The pieces of attention against torch's own kernels, and against the formulas' invariants."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from meshwright.errors import InputError
from meshwright.runtime.reference.attention import alibi_bias, alibi_slopes, attend, may_see
from meshwright.runtime.reference.norm import layer_norm, rms_norm
from meshwright.runtime.reference.rope import rope_tables, rotate
from meshwright.spec.model import Rope
from runtime.reference.families import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}
ROTARY = [family for family in FAMILIES if family.model.positions == "rope"]


def _random(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_attend_is_torchs_scaled_dot_product_attention(window: int | None) -> None:
    q, k, v = _random(2, 5, 4, 6), _random(2, 9, 2, 6), _random(2, 9, 2, 7)
    queries, keys = torch.arange(4, 9), torch.arange(9)  # the last five tokens of nine
    allowed, bias = may_see(queries, keys, window), _random(4, 5, 9)
    mask = bias.masked_fill(~allowed, -math.inf)
    theirs = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask, scale=0.3, enable_gqa=True)
    ours = attend(q, k, v, 0.3, allowed, bias)
    torch.testing.assert_close(ours, theirs.transpose(1, 2), rtol=0, atol=1e-14)  # float64, values of order one


def test_a_window_of_w_sees_the_token_itself_and_the_w_minus_1_before_it() -> None:
    seen = may_see(torch.arange(6), torch.arange(6), window=3)
    assert seen.sum(dim=1).tolist() == [1, 2, 3, 3, 3, 3]
    assert seen.diagonal().all()
    assert torch.equal(may_see(torch.arange(6), torch.arange(6), window=None), torch.ones(6, 6).tril().bool())


def test_a_sink_is_a_key_of_its_logit_with_a_value_of_zero() -> None:
    q, k, v, sinks = _random(1, 4, 2, 3), _random(1, 4, 2, 3), _random(1, 4, 2, 3), torch.tensor([0.3, -1.0], dtype=torch.float64)
    allowed = may_see(torch.arange(4), torch.arange(4), None)
    more_k, more_v = (torch.cat((t, torch.zeros(1, 1, 2, 3, dtype=torch.float64)), dim=1) for t in (k, v))
    bias = F.pad(torch.zeros(2, 4, 4, dtype=torch.float64), (0, 1)) + F.pad(sinks[:, None, None].expand(2, 4, 1), (4, 0))
    theirs = attend(q, more_k, more_v, 1.0, F.pad(allowed, (0, 1), value=True), bias)
    torch.testing.assert_close(attend(q, k, v, 1.0, allowed, sinks=sinks), theirs, rtol=0, atol=1e-15)


def test_alibi_slopes_are_the_papers() -> None:
    # ALiBi, section 3: 1/2 .. 1/2^8 for 8 heads, 1/2^0.5 .. 1/2^8 for 16
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(16).tolist() == [2 ** (-i / 2) for i in range(1, 17)]
    assert alibi_slopes(12).tolist() == [2.0**-i for i in range(1, 9)] + [2 ** (-i / 2) for i in (1, 3, 5, 7)]
    bias = alibi_bias(alibi_slopes(8), torch.arange(3), torch.arange(3), torch.float64)
    assert bias[1].tolist() == [[0, 0.25, 0.5], [-0.25, 0, 0.25], [-0.5, -0.25, 0]]


@pytest.mark.parametrize("family", ROTARY, ids=lambda family: family.name)
def test_tables_of_some_positions_are_rows_of_the_whole_table(family: object) -> None:
    model = family.model  # type: ignore[attr-defined]
    whole = rope_tables(model, torch.arange(40), 40, torch.float64)
    some = torch.tensor([3, 17, 39, 0])
    for part, table in zip(rope_tables(model, some, 40, torch.float64), whole, strict=True):
        assert torch.equal(part, table[some])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_keeps_lengths_and_makes_scores_depend_on_distance_only(interleaved: bool) -> None:
    model = replace(BY_NAME["mistral"].model, rope=Rope(theta=100.0, rotary_dim=6, interleaved=interleaved))
    cos, sin = rope_tables(model, torch.arange(12), 12, torch.float64)
    q, k = (_random(1, 1, 1, width).expand(1, 12, 1, 10) for width in (10, 10))
    q, k = q.clone(), (k * torch.linspace(-1, 1, 10, dtype=torch.float64)).clone()
    turned_q, turned_k = rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)
    assert torch.equal(turned_q[..., 6:], q[..., 6:])
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1), rtol=1e-14, atol=0)
    scores = torch.einsum("bqnh,bknh->qk", turned_q, turned_k)
    for distance in range(12):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-13)
    assert scores[0, 0] - scores[5, 0] != 0


def test_a_scaling_that_we_do_not_have_is_refused_by_name() -> None:
    model = replace(BY_NAME["mistral"].model, rope=Rope(scaling=(("rope_type", "longrope"),)))
    with pytest.raises(InputError, match="longrope"):
        rope_tables(model, torch.arange(3), 3, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norms_are_torchs(dtype: torch.dtype) -> None:
    x, weight, bias = _random(3, 5, 8, dtype=dtype), _random(8, dtype=dtype), _random(9, dtype=dtype)[:8]
    tight = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 0.02}[dtype]  # a few units in the last place at size 3
    torch.testing.assert_close(rms_norm(x, weight, 1e-3), F.rms_norm(x, (8,), weight, 1e-3), rtol=tight, atol=tight)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-3), F.layer_norm(x, (8,), weight, bias, 1e-3), rtol=0, atol=0)
    assert rms_norm(x, weight, 1e-3).dtype == dtype
