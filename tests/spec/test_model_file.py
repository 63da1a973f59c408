"""Models as TOML: what may be left out, what is refused, and how it is told."""

from __future__ import annotations

import json
import math
import random
import re

import pytest

from damage import mutate_text, mutate_values
from meshwright.catalog import list_names
from meshwright.catalog import path as catalog_path
from meshwright.errors import InputError, Mistake
from meshwright.spec.files import parse_toml
from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe, Rope
from meshwright.spec.model_file import load_model_file, read_model_file
from shared_data import ROOT

SMALL = """
vocab_size = 1000
hidden_size = 64
ffn_size = 256
layers = ["1 x dense", "2 x moe"]

[attention]
num_heads = 4

[moe]
num_experts = 8
top_k = 2
expert_ffn_size = 32
"""


def read(text: str) -> Model:
    return read_model_file(parse_toml(text, "model.toml"), "model.toml", "small")


def mistakes(text: str) -> list[Mistake]:
    with pytest.raises(InputError) as caught:
        read(text)
    return list(caught.value.mistakes)


def test_what_is_left_out_is_the_dataclass_default() -> None:
    assert read(SMALL) == Model(
        name="small",
        vocab_size=1000,
        hidden_size=64,
        ffn_size=256,
        attention=Attention(num_heads=4, num_kv_heads=4, head_dim=16),
        layers=(LayerKind(), LayerKind(moe=True), LayerKind(moe=True)),
        moe=Moe(num_experts=8, top_k=2, expert_ffn_size=32),
    )


def test_everything_that_can_be_said() -> None:
    text = """
    source = "a paper"
    vocab_size = 1000
    hidden_size = 64
    ffn_size = 256
    layers = ["dense", "2 x (moe window=8, moe)"]
    activation = "swiglu_clamped"
    activation_limit = 7.0
    mlp_bias = true
    norm = "layernorm"
    norm_eps = 1e-6
    positions = "rope"
    max_positions = 512
    embedding_norm = true
    tied_embeddings = true
    mtp_layers = 1
    stored_dtype = "fp8"
    [attention]
    num_heads = 4
    qkv_bias = true
    out_bias = true
    qk_norm = true
    sinks = true
    [attention.mla]
    q_lora_rank = 12
    kv_lora_rank = 16
    qk_nope_head_dim = 16
    qk_rope_head_dim = 8
    v_head_dim = 20
    [moe]
    num_experts = 8
    top_k = 2
    expert_ffn_size = 32
    shared_ffn_size = 64
    score = "sigmoid"
    router_bias = true
    selection_bias = true
    expert_bias = true
    num_groups = 2
    top_groups = 1
    norm_topk = false
    routed_scale = 2.5
    aux_loss_coefficient = 0.01
    [rope]
    theta = 5e5
    rotary_dim = 4
    interleaved = true
    [rope.scaling]
    rope_type = "yarn"
    factor = 4
    [sources]
    vocab_size = "another paper"
    "moe.top_k" = "a third"
    """
    assert read(text) == Model(
        name="small", source="a paper", vocab_size=1000, hidden_size=64, ffn_size=256,
        attention=Attention(
            num_heads=4, num_kv_heads=4, head_dim=24, qkv_bias=True, out_bias=True, qk_norm=True, sinks=True,
            mla=Mla(q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20),
        ),
        layers=(LayerKind(), *(LayerKind(window=8, moe=True), LayerKind(moe=True)) * 2),
        moe=Moe(
            num_experts=8, top_k=2, expert_ffn_size=32, shared_ffn_size=64, score="sigmoid", router_bias=True, selection_bias=True,
            expert_bias=True, num_groups=2, top_groups=1, norm_topk=False, routed_scale=2.5, aux_loss_coefficient=0.01,
        ),
        activation="swiglu_clamped", activation_limit=7.0, mlp_bias=True, norm="layernorm", norm_eps=1e-6, max_positions=512,
        rope=Rope(
            theta=5e5, rotary_dim=4, interleaved=True,
            scaling=(("factor", 4.0), ("original_max_position_embeddings", 512), ("rope_type", "yarn")),
        ),
        embedding_norm=True, tied_embeddings=True, mtp_layers=1, stored_dtype="fp8",
    )  # fmt: skip


def test_all_mistakes_together() -> None:
    text = SMALL.replace("= 1000", '= "1000"').replace("top_k = 2", "top_k = 9").replace("num_heads = 4", "num_heads = 4\nheads = 3")
    found = mistakes(text)
    assert {mistake.key for mistake in found} == {"vocab_size", "moe.top_k", "attention.heads"}
    assert {mistake.file for mistake in found} == {"model.toml"}


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("hidden_size = 64", "hidden_size = 66", "attention.head_dim"),
        ("hidden_size = 64", "", "hidden_size"),
        ("hidden_size = 64", "hidden_size = 64.0", "hidden_size"),
        ("hidden_size = 64", "hidden_size = 64\nnorm_eps = nan", "norm_eps"),
        ("hidden_size = 64", 'hidden_size = 64\nactivation = "silu"', "activation"),
        ("hidden_size = 64", 'hidden_size = 64\nstored_dtype = "bf17"', "stored_dtype"),
        ('["1 x dense", "2 x moe"]', '["3 x sparse"]', "layers"),
        ('["1 x dense", "2 x moe"]', '["100001 x moe"]', "layers"),
        ('["1 x dense", "2 x moe"]', "3", "layers"),
        ('["1 x dense", "2 x moe"]', '["3 x dense"]', "layers"),
        ("num_heads = 4", "num_heads = 4\nnum_kv_heads = 3", "attention.num_kv_heads"),
        ("num_experts = 8", "num_experts = 8\nnum_groups = 3", "moe.num_groups"),
        ("num_experts = 8", 'num_experts = 8\nscore = "relu"', "moe.score"),
        ("[moe]", '[rope.scaling]\nrope_type = "longrope"\n[moe]', "rope.scaling.rope_type"),
        ("[moe]", "[rope.scaling]\nfactor = 2.0\n[moe]", "rope.scaling.rope_type"),
        ("[moe]", "[rope]\ntheta = -1.0\n[moe]", "rope.theta"),
        ("[moe]", "[sources]\nvocab_size = 3\n[moe]", "sources.vocab_size"),
        ("[moe]", "[mla]\nx = 3\n[moe]", "mla"),
    ],
)
def test_one_mistake_each(old: str, new: str, key: str) -> None:
    assert old in SMALL
    assert mistakes(SMALL.replace(old, new))[0].key == key


def test_nothing_but_a_table_is_no_model() -> None:
    assert {mistake.key for mistake in mistakes("x = 1")} >= {"attention", "hidden_size", "layers", "x"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, "x", [], {}, 10**400])
def test_no_value_at_all_is_taken_for_a_size(value: object) -> None:
    values = parse_toml(SMALL, "")
    for key in ("vocab_size", "hidden_size", "ffn_size"):
        with pytest.raises(InputError):
            read_model_file({**values, key: value}, "", "")


@pytest.mark.parametrize("name", list_names("models"))
def test_damaged_files(name: str) -> None:
    text = catalog_path("models", name).read_text()
    for seed in range(60):
        rng = random.Random(f"{name} {seed}")
        for damaged in (lambda: mutate_values(parse_toml(text, name), rng), lambda: parse_toml(mutate_text(text, rng), name)):  # noqa: B023
            try:
                assert isinstance(read_model_file(damaged(), name, name), Model)
            except InputError as error:
                assert error.mistakes and all(mistake.file == name for mistake in error.mistakes)
                json.dumps([mistake.as_json() for mistake in error.mistakes])


def test_a_file_names_its_model(tmp_path) -> None:
    (tmp_path / "ours.toml").write_text(SMALL)
    assert load_model_file(tmp_path / "ours.toml").name == "ours"


def test_the_example_of_the_documentation_is_a_model() -> None:
    text = (ROOT / "docs" / "reference" / "models.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    model = read(example)
    assert model.layers.count(LayerKind(moe=True)) == 32
    for cls in (Model, Attention, Mla, Moe, Rope):
        for key in cls.__dataclass_fields__:
            assert f"`{key}`" in text or key in ("name", "assumed"), f"`{key}` is not described"
