"""Memory of Korthikanti et al. (arXiv 2205.05198), figure 1 and table 3: GPT models with sequence parallelism and selective recompute.

The figure is itself computed: 18 bytes of state per parameter (fp16 weight, fp32 gradient, master copy and two moments) and the paper's
equations for activations. So agreement is expected where the same parts are counted, and the tests say where they are not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.models import DENSE, GPT3_175B
from meshwright.estimate import priced
from meshwright.memory import stage_memory
from meshwright.priced import Priced
from meshwright.spec.layout import parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.model import Model
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import Training
from meshwright.units import GIB


def gpt(hidden_size: int, num_layers: int, num_heads: int) -> Model:
    attention = replace(GPT3_175B.attention, num_heads=num_heads, num_kv_heads=num_heads, head_dim=hidden_size // num_heads)
    return replace(GPT3_175B, hidden_size=hidden_size, ffn_size=4 * hidden_size, layers=(DENSE,) * num_layers, attention=attention)


RUNS = {  # model, layout, sequences per step
    "22B": (gpt(6144, 48, 64), "tp=8 sp mb=4", 4),
    "175B": (GPT3_175B, "tp=8 sp pp=8:interleaved*3 mb=1", 64),
    "530B": (gpt(20_480, 105, 128), "tp=8 sp pp=35:interleaved*3 mb=1", 280),
    "1T": (gpt(25_600, 128, 160), "tp=8 sp pp=64 mb=1", 512),
}


def priced_run(name: str) -> Priced:
    model, layout, batch = RUNS[name]
    workload = Training(seq=2048, batch=batch, precision="bf16-fp32grad")
    return priced(
        model, resolve_cluster("a100-sxm-80g"), workload, parse_layout(f"{layout} dp=1 recompute=selective"), STACKS["megatron-2021"]
    )


@pytest.mark.parametrize(("name", "gib"), [("175B", 45.56), ("1T", 32.96)])
def test_state_of_an_inner_stage(name: str, gib: float) -> None:
    """18 bytes per parameter, layers only. The paper counts weights of 12 h^2 a layer; biases and norms are 13 h more: 0.05 % at most."""
    memory = stage_memory(priced_run(name), 1)
    state = memory.weights + memory.gradients + memory.optimizer
    assert state / GIB == pytest.approx(gib, rel=0.001)


def test_state_with_the_embedding() -> None:
    """22B on one stage: 45.56 GiB are its layers; table, positions and final norm of 51,200 x 6,144 / 8 and whole ones come on top."""
    memory = stage_memory(priced_run("22B"), 0)
    h = 6144
    extra = 18 * (51_200 * h / 8 + 2048 * h + 2 * h)
    assert (memory.weights + memory.gradients + memory.optimizer - extra) / GIB == pytest.approx(45.56, rel=0.001)


@pytest.mark.parametrize(("name", "figure_gib", "megatron_gib"), [("22B", 9.56, 9.79), ("175B", 12.35, 12.38), ("1T", 26.56, 26.95)])
def test_activations_of_the_first_stage(name: str, figure_gib: float, megatron_gib: float) -> None:
    """The figure leaves embedding and head out (2.5 % at most). Megatron-LM's own report_theoretical_memory counts them, too; what it
    rounds away are the per-token statistics of norms (0.05 %)."""
    activations = stage_memory(priced_run(name), 0).activations
    assert activations / GIB == pytest.approx(figure_gib, rel=0.025)
    assert activations / GIB == pytest.approx(megatron_gib, rel=0.002)


def test_in_flight_activations_of_the_first_stage() -> None:
    """Section 4.2.3: s b h L/t (34) (1 + (p-1)/(p m)) with interleaving: 35 stages of three chunks hold 139 layers of the 105.

    The embedding's dropout mask, s b h/t, is in one chunk of three. Left over are token ids and the norms' statistics: 4,096 bytes on
    178 MB a layer."""
    s, h = 2048, 20_480
    held = 105 * (1 + 34 / (35 * 3))
    expected = held * (34 + 1 / 3) * s * h / 8
    assert stage_memory(priced_run("530B"), 0).activations == pytest.approx(expected, rel=1e-4)
