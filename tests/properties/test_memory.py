"""What memory must do when a layout changes in one key."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.columns import WORKLOAD, random_column
from ledger.models import DEEPSEEK_V3, LLAMA_70B, SMALL
from meshwright.estimate import priced
from meshwright.ledger.blocks.layer import Block
from meshwright.ledger.build import build
from meshwright.ledger.stages import LayerBlock
from meshwright.memory import StageMemory, stage_memory
from meshwright.spec.layout import Layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.model import Model
from meshwright.spec.workload import PRECISIONS, Training

CLUSTER = resolve_cluster("h100-sxm")
MODELS = st.sampled_from(SMALL)
SEEDS = st.integers(0, 2**32)
BY_STATE = [(0, ""), (1, ""), (3, "local"), (3, "")]
"""ZeRO stages from most to least resident state; zero=2 lies between zero=1 and zero=3. Variants keep whole gradients."""


def stages_of(model: Model, layout: Layout, precision: str | None) -> list[StageMemory]:
    numbers = priced(model, CLUSTER, replace(WORKLOAD, precision=precision), layout)
    return [stage_memory(numbers, index) for index in range(layout.pp)]


def resident(memory: StageMemory) -> float:
    return memory.weights + memory.gradients + memory.optimizer


@pytest.mark.parametrize(
    "order", [BY_STATE, [(0, ""), (1, ""), (2, ""), (3, "")], [(1, ""), (3, "keep"), (3, "")]], ids=["local", "stages", "keep"]
)
@given(model=MODELS, seed=SEEDS, precision=st.sampled_from([None, *PRECISIONS]))
def test_more_zero_never_holds_more_state(order: list[tuple[int, str]], model: Model, seed: int, precision: str | None) -> None:
    """Weights, gradients and optimizer of every stage, for any layout, model and recipe: padding included, and also where the
    default recipe changes with the stage (zero=3 keeps fp32 shards)."""
    layout = random_column(model, seed, length=1).layout(0)
    by_stage = [stages_of(model, replace(layout, zero=zero, zero_variant=variant), precision) for zero, variant in order]
    for less, more in pairwise(by_stage):
        assert all(resident(b) <= resident(a) for a, b in zip(less, more, strict=True))


def test_state_of_a_billion_parameters() -> None:
    """Rajbhandari et al. (arXiv 1910.02054), figure 1 and section 5: with Adam in mixed precision 16 bytes per parameter, and over 4 ranks
    4 + 12/4, 2 + 14/4 and 16/4: 16, 7, 5.5 and 4 GB for 1e9 parameters. Here for 70.6e9, in the same ratios; vectors of 8,192 and
    matrices divide by 4, so nothing is padded."""
    parameters = 70_553_706_496
    found = [resident(*stages_of(LLAMA_70B, Layout(dp_shard=4, zero=zero), "bf16")) / parameters for zero in range(4)]
    assert found == [16, 7, 5.5, 4]


def blocks(model: Model, layout: Layout) -> list[Block]:
    ledger = build(model, WORKLOAD, layout)
    return [ledger.embedding, ledger.head, *(ledger.layer(LayerBlock(kind, layout.recompute)) for kind in model.kinds)]


@given(MODELS, SEEDS)
def test_a_layer_keeps_no_more_with_more_tp_and_sp(model: Model, seed: int) -> None:
    """With sp all that a layer keeps is cut over tp, but for kv heads below one per rank, and the rows of experts that are cut over
    etp: those stay. Experts here are cut as tp is, since a smaller etp keeps more channels on fewer rows."""
    layout = replace(random_column(model, seed, length=1).layout(0), sp=True, pp=1, schedule="1f1b", virtual_stages=1, stages=None, ep=1)
    kept = [
        [
            block.saved_bytes
            for block in blocks(model, replace(layout, tp=tp, etp=tp, sp=tp > 1, ulysses=1, cp_kind="zigzag", cp=1, vocab_pad=1))
        ]
        for tp in (1, 2, 4, 8)
    ]
    for fewer, more in pairwise(kept):
        assert all(b <= a for a, b in zip(fewer, more, strict=True))


@pytest.mark.parametrize("kind", ["ring", "zigzag", "striped", "ulysses", "allgather"])
@pytest.mark.parametrize("model", SMALL, ids=lambda model: model.name)
def test_a_layer_keeps_no_more_with_more_cp(kind: str, model: Model) -> None:
    """A layer's tokens are cut over cp. Ulysses copies kv heads below one per rank, and keeps its heads' output before the swap back."""
    kept = [
        [block.saved_bytes for block in blocks(model, Layout(cp=cp, cp_kind=kind, ulysses=cp if kind == "ulysses" else 1))]
        for cp in (2, 4, 8)
    ]
    for fewer, more in pairwise(kept):
        assert all(b <= a for a, b in zip(fewer, more, strict=True))


@given(MODELS, SEEDS)
def test_recompute_keeps_less(model: Model, seed: int) -> None:
    """full <= selective <= none, for every block; what is not kept is there while the layer's backward runs."""
    layout = random_column(model, seed, length=1).layout(0)
    none, selective, full = (
        blocks(model, replace(layout, recompute=name, recompute_layers=None)) for name in ("none", "selective", "full")
    )
    for a, b, c in zip(none, selective, full, strict=True):
        assert c.saved_bytes <= b.saved_bytes <= a.saved_bytes
        assert a.saved_bytes == b.saved_bytes + b.working_bytes == c.saved_bytes + c.working_bytes


def test_latent_attention_keeps_less_than_its_heads() -> None:
    """DeepSeek-V3's latents are what a cache would keep; training keeps q, k and v of all heads beside them."""
    ledger = build(DEEPSEEK_V3, Training(seq=4096, batch=1), Layout())
    kept = {row.name: row.saved_bytes for row in ledger.layer(LayerBlock(DEEPSEEK_V3.layers[0], "none")).forward}
    assert kept["attention.rope"] == 4096 * 128 * (192 + 192 + 128) * 2
    assert kept["attention.kv_latent_norm"] < kept["attention.rope"] // 32
