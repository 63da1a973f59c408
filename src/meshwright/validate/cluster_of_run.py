"""The cluster of a published run: the catalog's for its GPU, with the memory, the links and the power limit that the row prints."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from meshwright.spec.cluster import Cluster
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.used_units import with_used_units
from meshwright.validate.runs import LARGEST, Run, Unjudgeable

GPUS = (
    (r"gh200", "h200-sxm"), (r"gb300", "gb300-nvl72"), (r"gb200", "gb200-nvl72"), (r"b300", "b300-sxm"), (r"b200", "b200-sxm"),
    (r"h200", "h200-sxm"), (r"h800", "h800-sxm"), (r"h100.*(pcie|nvl\b)", "h100-pcie"), (r"h100", "h100-sxm"),
    (r"a[18]00.*pcie", "a100-pcie"), (r"a100.*\b40", "a100-sxm-40g"), (r"\ba[18]00|ampere", "a100-sxm-80g"),
    (r"v100.*\b16", "v100-sxm-16g"), (r"v100", "v100-sxm"), (r"l40s", "l40s"),
    (r"mi300", "mi300x"), (r"mi325", "mi325x"), (r"mi35\d", "mi355x"),
)  # fmt: skip
"""What a row's GPU is called, most special first, and the cluster of the catalog that has it."""

SMALLER_MEMORY = {("a100-sxm-80g", "40"): "a100-sxm-40g", ("v100-sxm", "16"): "v100-sxm-16g"}
"""The sibling that a row's column ``gpu_mem_gb`` tells."""

H100_NVL = {
    "power_w": 400.0, "memory_bytes": 94 * 10**9, "hbm_bandwidth_bytes_per_s": 3.9e12,
    "peak_flops_per_s": (("bf16", 835e12), ("float16", 835e12), ("fp8", 1671e12), ("float32", 60e12)),
}  # fmt: skip
"""NVIDIA H100 NVL product brief, 2024: a PCIe card that the catalog has no entry of; figures with sparsity halved."""

EXPORT_NVLINK_BYTES_PER_S = 200e9
"""A800: 400 GB/s in both directions instead of the A100's 600 (NVIDIA A800 datasheet, 2022)."""

HBM2E_96G_BYTES_PER_S = 2.45e12
"""The H100 with 96 GB of HBM2e: six stacks of 1,024 bits at 3.2 Gb/s (torchtitan's H100s; JEDEC JESD235D's fastest grade)."""


@lru_cache(maxsize=32)
def _catalog_cluster(name: str) -> Cluster:
    return resolve_cluster(name)


def cluster_of(run: Run) -> tuple[Cluster, list[str]]:
    """The cluster, and what was assumed of it.

    Raises:
        Unjudgeable: no such GPU in the catalog.
    """
    gpu = run.text("gpu")
    name = next((cluster for pattern, cluster in GPUS if re.search(pattern, gpu, re.IGNORECASE)), None)
    if name is None:
        raise Unjudgeable(f"{gpu or 'the GPU'} is not in the catalog")
    cluster = _catalog_cluster(name)
    if sibling := SMALLER_MEMORY.get((name, run.text("gpu_mem_gb"))):
        cluster = _catalog_cluster(sibling)
    cluster, assumed = _with_links(run, _with_device(run, cluster))
    if re.search("gh200", gpu, re.IGNORECASE):
        assumed = [*assumed, "a GH200 computes as an H200"]
    return cluster, assumed


def _with_device(run: Run, cluster: Cluster) -> Cluster:
    gpu, device = run.text("gpu"), cluster.device
    if re.search(r"h100.*nvl\b", gpu, re.IGNORECASE):
        device = replace(device, **H100_NVL)  # type: ignore[arg-type]
    limit = re.search(r"(\d{3,4}) ?W\b", gpu)
    if limit and device.power_w:
        device = replace(device, power_w=float(limit[1]))
    if re.search("96 ?GB", gpu) and "HBM2e" in gpu:
        device = replace(device, memory_bytes=device.memory_bytes * 96 // 80, hbm_bandwidth_bytes_per_s=HBM2E_96G_BYTES_PER_S)
    return replace(cluster, device=device)


def _with_links(run: Run, cluster: Cluster) -> tuple[Cluster, list[str]]:
    """The row's adapters in place of the catalog's, which a job of one node does not need."""
    tiers = list(cluster.tiers)
    if re.search("a800", run.text("gpu"), re.IGNORECASE):
        tiers[0] = replace(tiers[0], bandwidth_bytes_per_s=EXPORT_NVLINK_BYTES_PER_S)
    tiers = list(with_used_units(replace(cluster, tiers=tuple(tiers)), run.whole("gpus"))[0].tiers)
    per_node = run.whole("gpus_per_node", tiers[0].size or 8)
    speed = inter_node_bytes_per_s(run.text("inter_link"), per_node)
    assumed = []
    if speed is not None:
        tiers[1:] = [replace(tier, bandwidth_bytes_per_s=speed) for tier in tiers[1:]]
    elif run.whole("gpus") > (tiers[0].size or 1) and len(tiers) > 1:
        assumed.append(f"the network of {cluster.name} between nodes")
    return replace(cluster, tiers=tuple(tiers)), assumed


def inter_node_bytes_per_s(text: str, gpus_per_node: int) -> float | None:
    """Bytes per second, direction and GPU out of ``8x200Gb/s HDR per node``, ``400Gb/s RDMA per GPU`` and their like.

    Raises:
        Unjudgeable: nothing, or more than any link, is sent in a second.
    """
    found = re.search(r"(?:(\d+) ?x ?)?(\d+(?:\.\d+)?) ?(Gb/s|Gbps|GB/s)", text)
    if found is None:
        return None
    bytes_per_s = float(found[2]) * (1e9 if found[3] == "GB/s" else 1e9 / 8)
    if not 0 < bytes_per_s * int(found[1] or 1) < LARGEST:
        raise Unjudgeable(f"inter_link = {text[:40]} is no rate of a link")
    if "per GPU" in text:
        return bytes_per_s
    if found[1]:
        return bytes_per_s * int(found[1]) / gpus_per_node
    return bytes_per_s / gpus_per_node if "per node" in text else bytes_per_s
