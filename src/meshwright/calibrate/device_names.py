"""Which cluster of the catalog a measurement was made on, by the device's name as its driver gives it."""

from __future__ import annotations

import re

CLUSTERS = (
    (r"GB300", "gb300-nvl72"),
    (r"GB200", "gb200-nvl72"),
    (r"B300", "b300-sxm"),
    (r"B200", "b200-sxm"),
    (r"H200", "h200-sxm"),
    (r"H800", "h800-sxm"),
    (r"H100.*PCIe", "h100-pcie"),
    (r"H100", "h100-sxm"),
    (r"A100.*PCIe", "a100-pcie"),
    (r"A100.*40GB", "a100-sxm-40g"),
    (r"A100", "a100-sxm-80g"),
    (r"V100-SXM\d-16GB", "v100-sxm-16g"),
    (r"V100-SXM", "v100-sxm"),
    (r"L40S", "l40s"),
    (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"),
    (r"MI355X", "mi355x"),
)
"""(pattern in the name, cluster), of names such as ``NVIDIA H100 80GB HBM3``, ``NVIDIA A100-SXM4-80GB``, ``Tesla V100-SXM2-32GB``."""

_RANK = re.compile(r"#\s+Rank\s+\d+\b.*\bon\s+\S+\s+device\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$", re.MULTILINE)


def devices_named(text: str) -> tuple[str, ...]:
    """The names of the devices that the rank lines of nccl-tests list, each once."""
    return tuple(dict.fromkeys(_RANK.findall(text)))


def cluster_named(device: str) -> str | None:
    """The cluster of the catalog with such a device, None if it is not known."""
    return next((cluster for pattern, cluster in CLUSTERS if re.search(pattern, device, re.IGNORECASE)), None)
