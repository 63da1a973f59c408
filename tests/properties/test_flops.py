"""Flops are conserved: summed over all ranks they are one device's, plus what is declared here as done more than once.

Done more than once, and under which layouts:
    router; mla's down projections; projection of multi-token prediction   tp ranks each, without sp (they see the same tokens)
    head                                                                   tp ranks each, with vocab=off and without sp
    k and v rows of qkv                                                    tp/K ranks each, with fewer kv heads than tp ranks
    recompute                                                              the layers that the policy names, see _recomputed
    columns of a padded vocabulary                                         one device pads to the same size here
Everything else that tp ranks hold alike (norms, residuals, look-ups without vocab) moves bytes and has no flops.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.columns import WORKLOAD, random_column
from ledger.models import DEEPSEEK_V3, GPT3_175B, LLAMA_70B, SMALL
from ledger.sums import flops
from meshwright.ledger.build import Ledger, build
from meshwright.model_flops import attention_flops_per_token, matmul_parameters
from meshwright.spec import names
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.parameters import layer_parameters, mtp_kind, mtp_parameters
from meshwright.spec.rules import padded_vocab
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import Training

ROUNDING = 1e-12
"""Relative. Sums of some thousand float64 terms, in another order on each side: each addition rounds by at most 1.1e-16."""

ON_WHOLE_TOKENS = (names.ROUTER, names.Q_DOWN, names.KV_DOWN, names.MTP_PROJECTION)


@given(st.sampled_from(SMALL), st.integers(0, 2**32), st.sampled_from(list(STACKS.values())))
def test_flops_of_all_ranks_are_one_devices_and_what_is_declared(model: Model, seed: int, stack: Any) -> None:
    layout = random_column(model, seed, length=1).layout(0)
    spread = flops(build(model, WORKLOAD, layout, stack))
    device = flops(build(model, WORKLOAD, Layout(vocab_pad=padded_vocab(model, layout)), stack))
    expected: Counter[tuple[str, str]] = Counter()
    for (phase, name), count in device.items():
        expected[phase, name] = count * _copies(name, model, layout)
    for name, count in _recomputed(build(model, WORKLOAD, layout, stack)).items():
        expected["recompute", name] = count * _copies(name, model, layout)
    assert spread.keys() == expected.keys()
    for key, count in expected.items():
        assert spread[key] == pytest.approx(count, rel=ROUNDING), (key, str(layout))


def _copies(name: str, model: Model, layout: Layout) -> float:
    if name in ON_WHOLE_TOKENS and not layout.sp:
        return layout.tp
    if name == names.HEAD and not layout.vocab and not layout.sp:
        return layout.tp
    a = model.attention
    if name == names.QKV and layout.tp > a.num_kv_heads:
        return (a.num_heads + 2 * layout.tp) / (a.num_heads + 2 * a.num_kv_heads)
    return 1


def _recomputed(ledger: Ledger) -> Counter[str]:
    """What one device's forward does again, by module: selective the attention cores; full whole layers, but the last product of a
    layer only where the stack repeats layers to their end; full=n the first n layers of each chunk and no multi-token prediction.
    """
    layout, model = ledger.layout, ledger.model
    found: Counter[str] = Counter()
    if layout.recompute == "none":
        return found
    repeated: Counter[Any] = Counter()
    for chunk in ledger.pipeline.chunks:
        first = chunk.first_layer
        limit = chunk.num_layers if layout.recompute_layers is None else min(layout.recompute_layers, chunk.num_layers)
        repeated.update(model.layers[first : first + limit])
    if layout.recompute_layers is None and model.mtp_layers:
        repeated[mtp_kind(model)] += model.mtp_layers
    for kind, layers in repeated.items():
        one = replace(model, layers=(kind,), mtp_layers=0)
        forward = {
            name: count for (phase, name), count in flops(build(one, ledger.workload, Layout(), ledger.stack)).items() if phase == "forward"
        }
        del forward[names.HEAD]
        if layout.recompute == "selective":
            forward = {names.CORE: forward[names.CORE]}
        elif not ledger.stack.recomputes_whole_layer:
            last = names.DOWN if not kind.moe else names.SHARED_DOWN
            forward.pop(last, None)
        for name, count in forward.items():
            found[name] += layers * count
    return found


@pytest.mark.parametrize("model", [LLAMA_70B, GPT3_175B, DEEPSEEK_V3, *SMALL], ids=lambda model: model.name)
def test_one_device_computes_6n_and_attention(model: Model) -> None:
    """6 N per token of the matrix products (PaLM, arXiv 2204.02311, appendix B), N of the matrices that a token meets; attention 7/6 of
    the causal convention: flash attention computes the scores once more in its backward (arXiv 2307.08691, section 3.1)."""
    workload = Training(seq=2048, batch=4)
    counted = flops(build(model, workload, Layout()))
    tokens = workload.seq * workload.batch
    products = sum(count for (_, name), count in counted.items() if name != names.CORE)
    assert products == pytest.approx(6 * (matmul_parameters(model) + _mtp_matrices(model)) * tokens, rel=ROUNDING)
    H, Hv = (model.attention.mla.qk_head_dim if model.attention.mla else model.attention.head_dim), model.attention.v_head_dim
    kinds = [*model.layers, *[mtp_kind(model)] * model.mtp_layers]
    pairs = sum(sum(min(q + 1, kind.window or workload.seq) for q in range(workload.seq)) for kind in kinds)
    core = sum(count for (_, name), count in counted.items() if name == names.CORE)
    assert core == pytest.approx(workload.batch * pairs * model.attention.num_heads * 2 * (4 * H + 3 * Hv), rel=ROUNDING)


def _mtp_matrices(model: Model) -> float:
    """Matrices of a multi-token-prediction layer that a token meets: its projection, its decoder layer and the shared head."""
    total = 0.0
    for parameter in [*mtp_parameters(model), *layer_parameters(model, mtp_kind(model))]:
        if len(parameter.shape) == 2:
            share = model.moe.top_k / model.moe.num_experts if model.moe and parameter.cut.startswith("expert") else 1.0
            total += parameter.size * share
    return model.mtp_layers * (total + model.vocab_size * model.hidden_size)


def test_published_flops_of_a_training_step() -> None:
    """GPT-3 175B, batch 64, one iteration: Korthikanti et al. (arXiv 2205.05198), equation 7, without recompute:
    72 B L s h^2 (1 + s/(6h) + v/(12 h L)), with uncausal attention as Megatron ran it."""
    B, L, s, h, v = 64, 96, 2048, 12_288, 51_200
    paper = 72 * B * L * s * h**2 * (1 + s / (6 * h) + v / (12 * h * L))
    counted = flops(build(GPT3_175B, Training(seq=s, batch=B), Layout(), STACKS["megatron-2021"]))
    assert sum(counted.values()) == pytest.approx(paper, rel=ROUNDING)


@pytest.mark.parametrize("model", [LLAMA_70B, DEEPSEEK_V3], ids=lambda model: model.name)
def test_the_causal_convention_counts_half_the_square(model: Model) -> None:
    """The convention takes s^2/2 pairs where the mask leaves s (s+1)/2, and no multi-token prediction."""
    seq = 4096
    plain = replace(model, mtp_layers=0)
    counted = flops(build(plain, Training(seq=seq, batch=1), Layout()))
    core = counted["forward", names.CORE] * 3
    assert core * seq / (seq + 1) == pytest.approx(attention_flops_per_token(plain, seq) * seq, rel=ROUNDING)
