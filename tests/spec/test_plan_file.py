"""plan.toml: what is saved is read back, a catalog that changes does not matter, a file that was changed is told."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import tomllib
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import mutate_text, mutate_values
from meshwright.catalog import path as catalog_path
from meshwright.errors import InputError
from meshwright.spec.files import parse_toml
from meshwright.spec.layout import Layout, parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe, Rope
from meshwright.spec.plan_file import PLAN_FORMAT, Plan, load_plan, plan_hash, plan_text, read_plan, save_plan
from meshwright.spec.toml_writer import toml_text
from meshwright.spec.workload import Decode, Prefill, Training

DENSE = Model(
    name="dense", vocab_size=50257, hidden_size=1600, ffn_size=6400, attention=Attention(num_heads=25, num_kv_heads=25, head_dim=64),
    layers=(LayerKind(),) * 48, activation="gelu", norm="layernorm", positions="learned", max_positions=1024, tied_embeddings=True,
    source='two\nlines, "quotes" and a \\',
)  # fmt: skip
LATENT = Model(
    name="latent", vocab_size=129280, hidden_size=7168, ffn_size=18432,
    attention=Attention(
        num_heads=128, num_kv_heads=128, head_dim=192,
        mla=Mla(q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    ),
    layers=(LayerKind(),) * 3 + (LayerKind(moe=True),) * 58, norm_eps=1e-6, mtp_layers=1,
    moe=Moe(num_experts=256, top_k=8, expert_ffn_size=2048, shared_ffn_size=2048, score="sigmoid", routed_scale=2.5, selection_bias=True),
    rope=Rope(theta=10000, interleaved=True, scaling=(("beta_fast", 32), ("factor", 40.0), ("rope_type", "yarn"), ("truncate", False))),
)  # fmt: skip
SLIDING = dataclasses.replace(LATENT, name="sliding", layers=(LayerKind(window=128, moe=True), LayerKind(moe=True)) * 18)

PLANS = {
    "dense": Plan(model=DENSE, cluster=resolve_cluster("a100-pcie"), workload=Training(seq=1024, batch=64), layout=Layout(dp_shard=8)),
    "latent": Plan(
        model=LATENT, cluster=resolve_cluster("mi300x"), workload=Training(seq=4096, batch=15360, precision="fp8"),
        layout=parse_layout("tp=2 sp pp=16:dualpipe ep=64 etp=1 dp=2x64 zero=1 mb=1 recompute=full=3"), stack="megatron",
        memory_fraction=0.9,
    ),
    "sliding": Plan(model=SLIDING, cluster=resolve_cluster("gb200-nvl72"), workload=Prefill(seq=8192, batch=4), layout=Layout(tp=8)),
    "decode": Plan(model=DENSE, cluster=resolve_cluster("l40s"), workload=Decode(seq=128, batch=1), layout=Layout(), versions=()),
}  # fmt: skip


def mistakes_of(text):
    with pytest.raises(InputError) as caught:
        read_plan(parse_toml(text, "plan.toml"), "plan.toml")
    assert all(mistake.file == "plan.toml" for mistake in caught.value.mistakes)
    return {mistake.key: mistake for mistake in caught.value.mistakes}


def by_hand(text):
    """The plan as a user may edit it: without the hash."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("hash"))


@pytest.mark.parametrize("name", PLANS)
def test_what_is_saved_is_read_back(name, tmp_path):
    plan, path = PLANS[name], tmp_path / "plan.toml"
    save_plan(plan, path)
    assert os.listdir(tmp_path) == ["plan.toml"]
    back = load_plan(path)
    assert back == plan and plan_text(back) == plan_text(plan)
    assert plan_hash(back) == plan_hash(plan) == tomllib.loads(path.read_text())["hash"]


@given(
    bandwidth=st.floats(1e6, 1e15), latency=st.floats(0, 0.1), theta=st.floats(0, 1e300), eps=st.floats(0, 1), fraction=st.floats(1e-9, 1)
)
def test_floats_are_saved_to_the_last_bit(bandwidth, latency, theta, eps, fraction):
    plan = PLANS["dense"]
    tier = dataclasses.replace(plan.cluster.tiers[-1], bandwidth_bytes_per_s=bandwidth, latency_s=latency)
    plan = dataclasses.replace(
        plan,
        cluster=dataclasses.replace(plan.cluster, tiers=(plan.cluster.tiers[0], tier)),
        model=dataclasses.replace(DENSE, rope=Rope(theta=theta), norm_eps=eps),
        memory_fraction=fraction,
    )
    assert read_plan(parse_toml(plan_text(plan), ""), "") == plan


def test_the_hash_is_over_every_value():
    plan = PLANS["latent"]
    variants = [
        dataclasses.replace(plan, stack="deepspeed"),
        dataclasses.replace(plan, memory_fraction=0.92),
        dataclasses.replace(plan, versions=(("meshwright", "9.9"),)),
        dataclasses.replace(plan, layout=dataclasses.replace(plan.layout, mb=2)),
        dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, batch=1)),
        dataclasses.replace(plan, model=dataclasses.replace(LATENT, norm_eps=1.0000000000000002e-6)),
        dataclasses.replace(plan, cluster=dataclasses.replace(plan.cluster, num_gpus=4096)),
    ]
    assert len({plan_hash(p) for p in [plan, *variants]}) == len(variants) + 1


def test_a_changed_catalog_does_not_change_a_saved_plan(tmp_path, monkeypatch):
    path = tmp_path / "plan.toml"
    save_plan(PLANS["latent"], path)
    monkeypatch.setattr(import_module("meshwright.catalog"), "ROOT", tmp_path / "nothing")
    assert load_plan(path) == PLANS["latent"]


def test_a_changed_file_is_told():
    text = plan_text(PLANS["latent"]).replace("seq = 4096", "seq = 8192")
    found = mistakes_of(text)
    assert list(found) == ["hash"] and "delete the line `hash`" in found["hash"].hint
    assert read_plan(parse_toml(by_hand(text), ""), "").workload.seq == 8192


def test_layout_of_the_text_does_not_matter():
    """Comments, blanks and the order of keys are no change."""
    values = parse_toml(plan_text(PLANS["latent"]), "")
    shuffled = "# a comment\n\n" + toml_text(dict(reversed(values.items())))
    assert read_plan(parse_toml(shuffled, ""), "") == PLANS["latent"]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("format = 1", f"format = {PLAN_FORMAT + 1}", "format"),
        ("format = 1", "", "format"),
        ("gpus = 4096", "gpus = 512", "layout.gpus"),
        ("gpus = 4096", "gpus = 100_000_001", "gpus"),
        ("tp=2 sp", "tp=0 sp", "layout.tp"),
        ("tp=2 sp", "tp=2 spp", "layout.spp"),
        ("memory_fraction = 0.9", "memory_fraction = 1.1", "memory_fraction"),
        ('stack = "megatron"', 'stack = "megatrom"', "stack"),
        ("seq = 4096", "seq = -1", "workload.seq"),
        ("seq = 4096", "", "workload.seq"),
        ("batch = 15360", "batch = 4_194_304", "workload.batch"),
        ('kind = "training"', 'kind = "trainig"', "workload.kind"),
        ('precision = "fp8"', 'precision = "fp9"', "workload.precision"),
        ("hidden_size = 7168", "hidden_size = 100_000_001", "model.hidden_size"),
        ("hidden_size = 7168", "hiden_size = 7168", "model.hiden_size"),
        ("norm_eps = 1e-06", "norm_eps = nan", "model.norm_eps"),
        ('"3 x dense"', '"100001 x dense"', "model.layers"),
        ('"3 x dense"', '"3 x danse"', "model.layers"),
        ('norm = "rmsnorm"', 'norm = "rms"', "model.norm"),
        ("num_experts = 256", "num_experts = 2.5", "model.moe.num_experts"),
        ("kv_lora_rank = 512", "kv_lora_rank = 0", "model.attention.mla.kv_lora_rank"),
        ("beta_fast = 32", "beta_fast = inf", "model.rope.scaling.beta_fast"),
        ("memory_bytes = 206141652992", "memory_bytes = 0", "cluster.device.memory_bytes"),
        ("size = 256", "size = 255", "cluster.tiers[1].size"),
        ('[cluster]\nname = "mi300x"', '[cluster]\nname = "mi300x"\nnum_gpus = 2048', "layout"),
        ("[workload]", "[worklaod]", "workload"),
        ("[versions]\n", "[versions]\nx = 3\n", "versions.x"),
    ],
)
def test_a_mistake_by_hand(old, new, key):
    text = by_hand(plan_text(PLANS["latent"]))
    assert old in text
    found = mistakes_of(text.replace(old, new, 1))
    assert key in found and found[key].legal


def test_a_cluster_of_the_catalog_may_be_named_by_hand():
    plan = PLANS["decode"]
    head = by_hand(plan_text(plan)).split("[cluster]")[0]
    tiers = catalog_path("clusters", "l40s").read_text().replace("[[tiers]]", "[[cluster.tiers]]").replace("[tiers.", "[cluster.tiers.")
    assert read_plan(parse_toml(f"{head}[cluster]\n{tiers}", ""), "") == plan


def test_a_path_that_cannot_be_written(tmp_path):
    for path in (tmp_path, tmp_path / "gone" / "plan.toml"):
        with pytest.raises(InputError):
            save_plan(PLANS["dense"], path)
    assert os.listdir(tmp_path) == []


def test_names_that_no_terminal_shows_are_saved_readably(tmp_path):
    """A folder may be called anything, and its name becomes the model's."""
    plan = dataclasses.replace(PLANS["dense"], model=dataclasses.replace(DENSE, name="a\x1b[31m\udcff"))
    save_plan(plan, tmp_path / "plan.toml")
    assert load_plan(tmp_path / "plan.toml").model.name == "a\\x1b[31m\\udcff"


def outcome(text_or_values) -> bool:
    """Whether it was accepted; then it is saved and read back as it is."""
    try:
        values = parse_toml(text_or_values, "x") if isinstance(text_or_values, str) else text_or_values
        plan = read_plan(values, "x")
    except InputError as error:
        str(error).encode("utf-8")
        json.dumps([mistake.as_json() for mistake in error.mistakes])
        return False
    assert read_plan(parse_toml(plan_text(plan), ""), "") == plan
    return True


@pytest.mark.parametrize("name", ["dense", "latent"])
def test_damaged_plans(name):
    """With the hash nearly nothing passes; without it, what passes is a plan like any other. Never a traceback."""
    rng = random.Random(5)
    saved, edited = plan_text(PLANS[name]), by_hand(plan_text(PLANS[name]))
    accepted = sum(outcome(mutate_text(saved, rng)) for _ in range(200))
    assert accepted < 70  # damage to comments and blanks alone
    assert 10 < sum(outcome(mutate_text(edited, rng)) for _ in range(600)) < 540
    values = parse_toml(edited, "")
    assert 10 < sum(outcome(mutate_values(values, rng)) for _ in range(800)) < 740
