"""The curve that prices an op in a tier: the one measured there, or one made from the tier's bandwidth and latency.

Constants of made-up curves come from those fitted to nccl-tests of one node of A100, H100, H200, B200 and GB200
(catalog/network). Their median error on a generation that they were not taken from is in docs/log.md.
"""

from __future__ import annotations

from functools import lru_cache

from meshwright.spec.cluster import Tier
from meshwright.spec.network import Curve

MEASURED_AS = {
    "all_reduce": ("all_reduce", "ring"),
    "in_switch": ("all_reduce", "in_switch"),
    "all_gather": ("all_gather", "ring"),
    "reduce_scatter": ("reduce_scatter", "ring"),
    "broadcast": ("all_gather", "ring"),
    "all_to_all": ("all_to_all", "pairwise"),
    "send": ("all_to_all", "pairwise"),
}
"""What a priced op is measured as: a broadcast passes chunks round as an all_gather does, a send is one of an all_to_all's."""

LAUNCH_S = 6e-6
"""Launch of a ring: fitted 4.1 to 8.5 us."""

EXCHANGE_LAUNCH_S = 8e-6
"""Launch of an all_to_all or a send: fitted 6.7 to 10.9 us."""

PEER = 0.17
"""Latency of each further peer of an all_to_all over the tier's latency: fitted 0.04 to 0.29."""

SHARE = 0.78
"""Bandwidth that very large messages approach over the link's: NVLink 0.77 to 0.91 (catalog/network), V100 0.83, MI300X 0.70 to
0.75 (S. Bekman, Machine Learning Engineering, network chapter, 2026), PCIe 0.66 (SimuMax, configs/system/a100_pcie.json)."""

RISE = 12.0
"""rise_s over latency_s: fitted 4.9 to 29, middle 12; it is 4 times the depth of the pipeline (spec/network.py)."""

SWITCH_SHARE, SWITCH_RISE, SWITCH_LAUNCH = 0.58, 29.0, 19.0
"""In-switch all_reduce: payload rate over the link's (fitted 0.54 to 0.65; NVL72 0.48); rise and launch over latency (fitted 26 to 35,
18 to 20)."""

OUTER_SHARE = 0.98
"""Across nodes, over the adapters' line rate. With the rise below: 1 % above the time of 32 H200 at 4 GiB, 2 to 9 % above that of 32 B200
from 512 MiB to 16 GiB, and 20 to 30 % below it from 64 to 256 MiB, where the hops of that fabric (AWS EFA, 8 x 50 GB/s) show, which
are slower than InfiniBand's (S. Bekman, Machine Learning Engineering, network chapter, 2026). Other fabrics: unknown."""

OUTER_EXCHANGE_SHARE = 0.80
"""The same for an all_to_all, whose messages are n times smaller: no public measurement; assumed."""

OUTER_RISE_S = 120e-6
"""Rise of a tier across nodes: fitted to the same 32 B200, 46 MB for a node's eight adapters of 50 GB/s."""


@lru_cache(maxsize=4096)
def rate(tier: Tier, innermost: bool, op: str) -> Curve:
    """The curve of ``op`` in a tier; ``op`` is a key of MEASURED_AS. Oversubscription takes its part of the bandwidth."""
    wanted = MEASURED_AS[op]
    measured = next((curve for curve in tier.curves if (curve.op, curve.algorithm) == wanted), None)
    if measured is None:
        return _assumed_inside(tier, op) if innermost else _assumed_across(tier, op)
    return Curve(
        launch_s=measured.launch_s,
        step_latency_s=measured.step_latency_s,
        bandwidth_bytes_per_s=measured.bandwidth_bytes_per_s / tier.oversubscription,
        half_bytes=measured.half_bytes,
        copy_bandwidth_bytes_per_s=measured.copy_bandwidth_bytes_per_s,
    )


def _assumed_inside(tier: Tier, op: str) -> Curve:
    if op == "in_switch":
        bandwidth = tier.loaded_bandwidth_bytes_per_s * SWITCH_SHARE
        return _curve(SWITCH_LAUNCH * tier.latency_s, 0.0, bandwidth, SWITCH_RISE * tier.latency_s)
    bandwidth, rise_s = tier.loaded_bandwidth_bytes_per_s * SHARE, RISE * tier.latency_s
    if op == "all_to_all":
        return _curve(EXCHANGE_LAUNCH_S, PEER * tier.latency_s, bandwidth, rise_s)
    return _curve(EXCHANGE_LAUNCH_S if op == "send" else LAUNCH_S, tier.latency_s, bandwidth, rise_s)


def _assumed_across(tier: Tier, op: str) -> Curve:
    share = OUTER_EXCHANGE_SHARE if op == "all_to_all" else OUTER_SHARE
    return _curve(0.0, tier.latency_s, tier.loaded_bandwidth_bytes_per_s * share, OUTER_RISE_S)


def _curve(launch_s: float, step_latency_s: float, bandwidth_bytes_per_s: float, rise_s: float) -> Curve:
    return Curve(
        launch_s=launch_s, step_latency_s=step_latency_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        half_bytes=rise_s * bandwidth_bytes_per_s,
    )  # fmt: skip


def assumed_rates(tiers: tuple[Tier, ...], gpus: int) -> list[str]:
    """What a job of so many GPUs has to assume about its network: words for each tier that nobody has measured."""
    found = []
    unit = 1
    for index, tier in enumerate(tiers):
        if gpus > unit and not tier.curves:
            share = SHARE if index == 0 else OUTER_SHARE
            reached = f"{share:.0%} of its link rate for large messages"
            seen = "as measured networks do" if index == 0 else "as the few public points on four nodes do, small ones much less"
            found.append(f"collectives in tier {tier.name} reach {reached}, {seen}; `meshwright calibrate` fits your own")
        unit = tier.size or gpus
    return found
