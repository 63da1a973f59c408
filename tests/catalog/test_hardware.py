"""Devices and clusters of the catalog: complete, sourced, and in agreement with measurements and with clock arithmetic."""

from __future__ import annotations

import csv
import tomllib

import pytest

from meshwright.catalog import list_names
from meshwright.catalog import path as catalog_path
from meshwright.spec.load_cluster import load_device, resolve_cluster
from shared_data import shared

DEVICES = list_names("devices")
CLUSTERS = list_names("clusters")

DEVICE_OF = {
    "A100 SXM 80GB": "a100-sxm-80g", "NVIDIA A100 SXM": "a100-sxm-80g", "NVIDIA A100 PCIe": "a100-pcie", "A100 PCIe 80GB": "a100-pcie",
    "H100 SXM": "h100-sxm", "NVIDIA H100 SXM": "h100-sxm", "H200 SXM": "h200-sxm", "NVIDIA H200 SXM": "h200-sxm",
    "B200 SXM": "b200-sxm", "NVIDIA B200 SXM": "b200-sxm", "NVIDIA B300 SXM": "b300-sxm", "GB200": "gb200", "NVIDIA GB200 SXM": "gb200",
    "AMD MI300X": "mi300x", "AMD MI325X": "mi325x", "AMD MI355X": "mi355x",
}  # fmt: skip
"""Names of the measured facts -> ours."""


def facts(**wanted):
    with shared("data/hardware_facts.csv").open() as stream:
        return [row for row in csv.DictReader(stream) if all(row[key] == value for key, value in wanted.items())]


def tier(cluster, name):
    return next(t for t in resolve_cluster(cluster).tiers if t.name == name)


def test_the_names_that_the_documentation_promises():
    promised = "v100-sxm a100-sxm-40g a100-sxm-80g a100-pcie h100-sxm h800-sxm h200-sxm l40s b200-sxm gb200-nvl72 mi300x mi325x mi355x"
    assert set(promised.split()) <= set(CLUSTERS)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_loads_under_its_name_and_every_figure_has_a_source(name):
    assert load_device(name).name == name
    values = tomllib.loads(catalog_path("devices", name).read_text())
    figures = set(values) - {"name", "vendor", "generation", "sources"}
    assert figures == set(values["sources"]), "each figure, and nothing else, has a source"


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_loads_under_its_name_and_every_figure_has_a_source(name):
    cluster = resolve_cluster(name)
    assert cluster.name == name and cluster.num_gpus is None and cluster.tiers[-1].size is None
    for values in tomllib.loads(catalog_path("clusters", name).read_text())["tiers"]:
        assert set(values) - {"name", "sources"} == set(values["sources"]), "each figure, and nothing else, has a source"


def test_one_node_is_what_one_calls_a_node():
    nodes = {name: resolve_cluster(name).gpus_per_node for name in CLUSTERS}
    assert nodes.pop("gb200-nvl72") == nodes.pop("gb300-nvl72") == 72
    assert set(nodes.values()) == {8}


@pytest.mark.parametrize(
    ("device", "clock_hz", "flops_per_clock", "cores"),
    [
        ("a100-sxm-80g", 1410e6, 2 * 256, 432),  # NVIDIA A100 white paper, 2020: boost clock, FMA per tensor core, tensor cores
        ("h100-sxm", 1830e6, 2 * 512, 528),  # NVIDIA H100 white paper, 2022
        ("v100-sxm-32g", 1530e6, 2 * 64, 640),  # NVIDIA V100 white paper, 2017
        ("mi300x", 2100e6, 2 * 256, 1216),  # AMD CDNA 3 white paper, 2023
        ("mi355x", 2400e6, 2 * 512, 1024),  # AMD CDNA 4 white paper, 2025
    ],
)
def test_16_bit_peaks_are_clock_times_units(device, clock_hz, flops_per_clock, cores):
    """Dense arithmetic: a marketing figure with sparsity would be twice as much. Data sheets print three digits: 0.5 %."""
    assert load_device(device).peak("float16") == pytest.approx(clock_hz * flops_per_clock * cores, rel=5e-3)


def test_no_measured_matmul_beats_the_peak_and_the_best_reaches_half_of_it():
    """A peak that is too low is beaten by a measurement; one with sparsity would leave the best at about 40 %."""
    best: dict[tuple[str, str], float] = {}
    for row in facts(kind="matmul"):
        dtype = {"bf16": "bf16", "fp8": "fp8"}.get(row["precision"])
        if row["gpu"] in DEVICE_OF and dtype is not None:
            key = DEVICE_OF[row["gpu"]], dtype
            best[key] = max(best.get(key, 0.0), float(row["value"]) * 1e12)
    assert len(best) > 10
    for (name, dtype), rate in best.items():
        peak = load_device(name).peak(dtype)
        assert 0.5 < rate / peak <= 1.0, (name, dtype)  # MI300X, the lowest, reaches 0.51 of bf16


@pytest.mark.parametrize("name", ["a100-sxm-80g", "h100-sxm", "h200-sxm", "b200-sxm", "gb200-nvl72"])
def test_no_measured_all_gather_beats_nvlink(name):
    """Rings without reduction in the switch stay below the link, at 60 % of it or more on large messages (NCCL)."""
    link = resolve_cluster(name).tiers[0].bandwidth_bytes_per_s
    gpu = next(gpu for gpu, device in DEVICE_OF.items() if device == resolve_cluster(name).device.name)
    rates = [float(row["value"]) * 1e9 for row in facts(op="all_gather", gpu=gpu, kind="collective")]
    assert 0.6 < max(rates) / link < 1.0


@pytest.mark.parametrize(("name", "gpus"), [("a100-sxm-80g", 8), ("h100-sxm", 8), ("h200-sxm", 8), ("b200-sxm", 8), ("gb200-nvl72", 4)])
def test_the_step_of_nvlink_is_what_an_all_gather_takes_for_each_further_gpu(name, gpus):
    gpu = next(gpu for gpu, device in DEVICE_OF.items() if device == resolve_cluster(name).device.name)
    rows = facts(op="all_gather", gpu=gpu, kind="collective", message_bytes="1024")
    time_us = {row["gpus"]: float(row["notes"].split()[1]) for row in rows}
    step_s = (time_us[str(gpus)] - time_us["2"]) / (gpus - 2) * 1e-6
    assert resolve_cluster(name).tiers[0].latency_s == pytest.approx(step_s, abs=0.006e-6)  # rounded to 0.01 us


def test_latency_of_the_fabric_is_what_was_measured():
    latency_s = {
        row["op"].split(", ")[1] + " " + row["link"]: float(row["value"]) * 1e-6
        for row in facts(kind="latency", unit="us")
        if "64 B" in row["op"]
    }
    assert tier("h800-sxm", "leaf").latency_s == latency_s["same leaf InfiniBand"]
    assert tier("h800-sxm", "spine").latency_s == latency_s["across leaves InfiniBand"]
    assert tier("mi300x", "leaf").latency_s == latency_s["same leaf RoCE"]
    assert tier("mi300x", "spine").latency_s == latency_s["across leaves RoCE"]


def test_where_gpus_are_wired_to_each_other_a_pair_gets_one_link():
    """MI300X: an all_reduce over two reaches 47.7 of the 64 GB/s of their link, over eight 313 of 448."""
    xgmi = tier("mi300x", "xgmi")
    rate = {row["gpus"]: float(row["value"]) * 1e9 for row in facts(gpu="MI300X", kind="collective")}
    assert xgmi.bandwidth_bytes_per_s == 7 * xgmi.pair_bandwidth_bytes_per_s
    assert 0.6 < rate["2"] / xgmi.pair_bandwidth_bytes_per_s < 1.0
    assert 0.6 < rate["8"] / xgmi.bandwidth_bytes_per_s < 1.0


def test_pcie_is_shared_between_processors():
    pcie = tier("a100-pcie", "pcie")
    rate = {row["gpus"]: float(row["value"]) * 1e9 for row in facts(gpu="A100 PCIe 80GB", op="all_reduce")}
    assert rate["4"] < pcie.bandwidth_bytes_per_s
    assert rate["8"] < pcie.loaded_bandwidth_bytes_per_s < rate["4"]
    assert pcie.oversubscription == pytest.approx(rate["4"] / rate["8"], abs=0.005)  # rounded to 0.01


def test_vendors_count_both_directions():
    """DeepEP moves about 160 GB/s over the H800's NVLink, 400 GB/s in the data sheet, and 50 over its network."""
    reached = {row["link"]: float(row["value"]) * 1e9 for row in facts(gpu="H800", kind="p2p")}
    h800 = resolve_cluster("h800-sxm")
    assert h800.tiers[0].bandwidth_bytes_per_s == 200e9 > reached["NVLink (H800 variant)"]
    assert h800.tiers[1].bandwidth_bytes_per_s == reached["CX7 InfiniBand 400 Gb/s"]
    assert resolve_cluster("h100-sxm").tiers[0].bandwidth_bytes_per_s == 450e9


def test_switches_reduce_from_hopper_on():
    reduces = {name for name in CLUSTERS if resolve_cluster(name).tiers[0].in_network_reduction}
    assert reduces == {"h100-sxm", "h200-sxm", "h800-sxm", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72"}
    assert not any(t.in_network_reduction for name in CLUSTERS for t in resolve_cluster(name).tiers[1:])


def test_volta_has_no_bf16_and_only_blackwell_and_cdna4_have_fp4():
    assert {name for name in DEVICES if load_device(name).peak("bf16") is None} == {"v100-sxm-16g", "v100-sxm-32g"}
    assert {name for name in DEVICES if load_device(name).peak("fp4")} == {"b200-sxm", "b300-sxm", "gb200", "gb300", "mi355x"}
