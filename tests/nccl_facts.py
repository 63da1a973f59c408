"""Published collective times of one node, as points, from data/hardware_facts.csv."""

import csv
import re

from meshwright.calibrate.network import Fit, Point, fit, fit_all
from shared_data import shared

GENERATIONS = {"a100": "A100 SXM 80GB", "h100": "H100 SXM", "h200": "H200 SXM", "b200": "B200 SXM", "gb200": "GB200"}
OPS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}


def nccl_points(generation: str) -> list[Point]:
    """All points of the NCCL tables (ids ``aicnccl-*``) for one device generation; the time is in the notes, in us."""
    with shared("data/hardware_facts.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith("aicnccl-") and row["gpu"] == GENERATIONS[generation]]
    return [Point(OPS[row["op"]], int(row["gpus"]), float(row["message_bytes"]), _time_s(row["notes"]), where=row["id"]) for row in rows]


def busbw_points(prefix: str, gpu: str, gpus: int) -> list[Point]:
    """All-reduce points of another source, given as bus bandwidth in GB/s (ids beginning with ``prefix``)."""
    with shared("data/hardware_facts.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["id"].startswith(prefix) and r["gpu"] == gpu and r["gpus"] == str(gpus)]
    return [
        Point("all_reduce", gpus, float(r["message_bytes"]), 2 * (gpus - 1) / gpus * float(r["message_bytes"]) / (float(r["value"]) * 1e9),
              nodes=int(r["nodes"]), where=r["id"])
        for r in rows
    ]  # fmt: skip


def _time_s(notes: str) -> float:
    found = re.search(r"time ([0-9.]+) us", notes)
    assert found is not None, notes
    return float(found[1]) * 1e-6


def in_node_fits(generation: str) -> tuple[Fit, ...]:
    """One fit for each op; an all_reduce over 8 GPUs of Hopper and later is reduced by the switch."""
    return fit_all(nccl_points(generation), in_switch_from=None if generation == "a100" else 8)


def across_nodes_fit() -> Fit:
    """B200, 4 nodes of 8; below 256 KiB the source's times are 100 times those of 256 KiB: its warm-up, not the network."""
    inside = next(f.curve for f in in_node_fits("b200") if (f.op, f.algorithm) == ("all_reduce", "ring"))
    return fit([p for p in busbw_points("arsweep", "B200 SXM", 32) if p.payload_bytes >= 1 << 18], "ring", inside)
