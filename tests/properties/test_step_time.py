"""What the time of a step must do when the cluster or the batch changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.columns import WORKLOAD, random_column
from ledger.models import LLAMA_70B, SMALL
from meshwright.estimate import estimate, priced
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout, parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.model import Model
from meshwright.spec.stack import STACKS, Stack
from meshwright.spec.workload import Training
from meshwright.step_time import step_parts

ROUNDING = 1e-12
"""Relative: sums of the same float64 terms in another order."""

MODELS = st.sampled_from(SMALL)
SEEDS = st.integers(0, 2**32)
CLUSTERS = st.sampled_from(["h100-sxm", "gb200-nvl72", "a100-pcie", "mi300x", "v100-sxm"]).map(resolve_cluster)
ANY_STACK = st.sampled_from(list(STACKS.values()))


def step_s(model: Model, cluster: Cluster, layout: Layout, stack: Stack, workload: Training = WORKLOAD) -> float:
    return float(step_parts(priced(model, cluster, workload, layout, stack))[0].step_s)


@given(MODELS, SEEDS, CLUSTERS, ANY_STACK)
def test_parts_are_seconds_that_sum_to_the_step(model: Model, seed: int, cluster: Cluster, stack: Stack) -> None:
    found = estimate(model, cluster, WORKLOAD, random_column(model, seed, length=1).layout(0), stack)
    assert min(found.parts.values()) >= 0
    assert sum(found.parts.values()) == pytest.approx(found.step_s, rel=ROUNDING)
    assert found.step_s_low <= found.step_s <= found.step_s_high
    assert 0 <= found.bubble_fraction < 1
    assert 0 < found.mfu < 1


def faster(cluster: Cluster, what: str) -> Cluster:
    """The cluster with twice the bandwidth of one tier (its index), of memory, or of the products."""
    if what == "memory":
        return replace(cluster, device=replace(cluster.device, hbm_bandwidth_bytes_per_s=2 * cluster.device.hbm_bandwidth_bytes_per_s))
    if what == "peak":
        peaks = tuple((dtype, 2 * peak) for dtype, peak in cluster.device.peak_flops_per_s)
        return replace(cluster, device=replace(cluster.device, peak_flops_per_s=peaks))
    chosen = int(what) % len(cluster.tiers)
    tiers = [
        replace(tier, bandwidth_bytes_per_s=2 * tier.bandwidth_bytes_per_s) if i == chosen else tier for i, tier in enumerate(cluster.tiers)
    ]
    return replace(cluster, tiers=tuple(tiers))


@given(MODELS, SEEDS, CLUSTERS, ANY_STACK, st.sampled_from(["memory", "peak", "0", "1", "2"]))
def test_doubling_a_rate_never_slows(model: Model, seed: int, cluster: Cluster, stack: Stack, what: str) -> None:
    """Rounding aside: where a collective is hidden, its time cancels only to the last bit. The formula of zb-v is of equal stages and has
    durations with a minus sign: where the host bounds all chunks but those at the ends, which differ by some ns, it may rise by these."""
    layout = random_column(model, seed, length=1).layout(0)
    slack = 1e-8 if layout.schedule == "zb-v" else ROUNDING
    assert step_s(model, faster(cluster, what), layout, stack) <= step_s(model, cluster, layout, stack) * (1 + slack)


@given(MODELS, SEEDS, CLUSTERS, ANY_STACK)
def test_more_micro_batches_never_raise_the_bubble(model: Model, seed: int, cluster: Cluster, stack: Stack) -> None:
    """Fill and drain are the same, the work between them grows; naive's share is the same."""
    layout = random_column(model, seed, length=1).layout(0)
    bubbles = [
        float(step_parts(priced(model, cluster, replace(WORKLOAD, batch=times * WORKLOAD.batch), layout, stack))[1])
        for times in (1, 2, 3, 6)
    ]
    for fewer, more in pairwise(bubbles):
        assert more <= fewer + ROUNDING


@given(MODELS, SEEDS, CLUSTERS, ANY_STACK)
def test_more_sequences_take_longer(model: Model, seed: int, cluster: Cluster, stack: Stack) -> None:
    layout = random_column(model, seed, length=1).layout(0)
    seconds = [step_s(model, cluster, layout, stack, replace(WORKLOAD, batch=times * WORKLOAD.batch)) for times in (1, 2, 4)]
    assert seconds[0] < seconds[1] < seconds[2]


@pytest.mark.parametrize(
    ("layout", "bubble"),
    [("pp=4 dp=1", 3 / 19), ("pp=4:gpipe dp=1", 3 / 19), ("pp=4:naive dp=1", 3 / 4), ("pp=4:interleaved*2 dp=1", 3 / 35)],
)
def test_bubble_of_equal_stages(layout: str, bubble: float) -> None:
    """(p-1)/(m+p-1) of GPipe (arXiv 1811.06965) and 1F1B, (p-1)/(v m+p-1) interleaved (arXiv 2104.04473, section 2.2), for p=4, m=16, v=2.

    A model without vocabulary to speak of, so that stages are equal; messages that cost nothing."""
    model = replace(LLAMA_70B, vocab_size=8)
    cluster = resolve_cluster("h100-sxm")
    fast = tuple(replace(tier, bandwidth_bytes_per_s=1e18, latency_s=0.0) for tier in cluster.tiers)
    numbers = priced(model, replace(cluster, tiers=fast), Training(seq=8192, batch=16), parse_layout(f"{layout} mb=1"))
    found = float(step_parts(numbers)[1])
    # Embedding, final norm and head stand on the end stages: 3 kernels of some ten microseconds beside 80 layers of 30 ms.
    assert found == pytest.approx(bubble, rel=2e-3)
