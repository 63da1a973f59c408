"""Rules inside one model, on models that are built in Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe, Rope
from meshwright.spec.model_rules import RULES, check_model

DENSE = Model(
    name="small",
    vocab_size=1000,
    hidden_size=64,
    ffn_size=256,
    attention=Attention(num_heads=4, num_kv_heads=2, head_dim=16),
    layers=(LayerKind(),) * 3,
)
MOE = replace(DENSE, layers=(LayerKind(), LayerKind(moe=True)), moe=Moe(num_experts=8, top_k=2, expert_ffn_size=32))
LATENT = replace(
    MOE,
    attention=Attention(
        num_heads=4, num_kv_heads=4, head_dim=24,
        mla=Mla(q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16),
    ),
    moe=Moe(num_experts=8, top_k=2, expert_ffn_size=32, score="sigmoid", num_groups=4, top_groups=2),
)  # fmt: skip


def attention(model: Model, **changes: Any) -> Model:
    return replace(model, attention=replace(model.attention, **changes))


def moe(model: Model, **changes: Any) -> Model:
    assert model.moe is not None
    return replace(model, moe=replace(model.moe, **changes))


def mla(**changes: Any) -> Model:
    assert LATENT.attention.mla is not None
    return attention(LATENT, mla=replace(LATENT.attention.mla, **changes))


@pytest.mark.parametrize("model", [DENSE, MOE, LATENT, replace(DENSE, positions="learned"), attention(DENSE, num_kv_heads=1)])
def test_sound_models(model: Model) -> None:
    check_model(model)


BROKEN = [
    (attention(DENSE, num_kv_heads=3), "attention.num_kv_heads", "a divisor of `attention.num_heads` = 4"),
    (attention(LATENT, num_kv_heads=2), "attention.num_kv_heads", "4"),
    (attention(DENSE, head_dim=15), "attention.head_dim", "an even number"),
    (replace(DENSE, rope=Rope(rotary_dim=7)), "rope.rotary_dim", "an even number up to `attention.head_dim` = 16"),
    (replace(DENSE, rope=Rope(rotary_dim=18)), "rope.rotary_dim", "an even number up to `attention.head_dim` = 16"),
    (mla(qk_rope_head_dim=7, qk_nope_head_dim=17), "attention.mla.qk_rope_head_dim", "an even number"),
    (attention(LATENT, head_dim=32), "attention.head_dim", "24 = `attention.mla.qk_nope_head_dim` + `attention.mla.qk_rope_head_dim`"),
    (moe(MOE, top_k=9), "moe.top_k", "1 to `moe.num_experts` = 8"),
    (moe(LATENT, top_k=5), "moe.top_k", "1 to 4"),
    (moe(LATENT, num_groups=3), "moe.num_groups", "a divisor of `moe.num_experts` = 8"),
    (moe(LATENT, num_groups=8, top_groups=4), "moe.num_groups", "at most 4"),
    (moe(LATENT, top_groups=5), "moe.top_groups", "1 to `moe.num_groups` = 4"),
    (replace(MOE, moe=None), "layers", "dense layers, or a table [moe]"),
    (replace(MOE, layers=(LayerKind(),)), "layers", "at least one moe layer, or no table [moe]"),
    (replace(DENSE, activation="swiglu_clamped"), "activation_limit", "a number with swiglu_clamped, else nothing"),
    (replace(DENSE, activation_limit=7.0), "activation_limit", "a number with swiglu_clamped, else nothing"),
    (replace(DENSE, vocab_size=10**8, hidden_size=10**8), "hidden_size", "tensors of at most 2^53 elements; embedding would be"),
]


@pytest.mark.parametrize(("model", "field", "legal"), BROKEN)
def test_broken_rules(model: Model, field: str, legal: str) -> None:
    with pytest.raises(InputError) as caught:
        check_model(model)
    (mistake,) = caught.value.mistakes
    assert (mistake.file, mistake.key) == ("small", field)
    assert mistake.legal.startswith(legal)
    assert mistake.problem


def test_odd_heads_are_fine_without_rotation() -> None:
    check_model(attention(replace(DENSE, positions="learned"), head_dim=15))


def test_every_rule_is_seen_to_break() -> None:
    for rule in RULES:
        assert any(list(rule(model)) for model, _, _ in BROKEN), rule.__name__
        assert not list(rule(DENSE)), rule.__name__
