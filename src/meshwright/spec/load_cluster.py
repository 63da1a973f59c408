"""Read a cluster: a name of the catalog, or a TOML file of the user's own.

A file names a device of the catalog (``device = "h100-sxm"``) or describes one in a ``[device]`` table, and lists its
tiers of network, innermost first. docs/reference/cluster-file.md describes every key; catalog/clusters/ has examples.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from meshwright.catalog import list_names
from meshwright.catalog import path as catalog_path
from meshwright.errors import InputError, Mistake, Mistakes
from meshwright.spec.cluster import Cluster, Device, Tier
from meshwright.spec.files import read_toml
from meshwright.spec.load_network import network_of
from meshwright.spec.tables import Table
from meshwright.units import DTYPE_BYTES

__all__ = ["load_cluster", "load_device", "read_cluster", "resolve_cluster"]

BANDWIDTH_UNIT = "bytes per second, per direction and GPU: 450 GB/s is 450e9"
LATENCY_UNIT = "seconds: 3 microseconds is 3e-6"
PEAK_UNIT = "dense flops per second: 989 TFLOP/s is 989e12"

# A value outside these bounds is a slip of the unit (GB/s for bytes/s, microseconds for seconds), not a machine.
BANDWIDTH_BOUNDS = (1e6, 1e15)
LONGEST_LATENCY_S = 0.1
PEAK_BOUNDS = (1e9, 1e20)
LARGEST_OVERSUBSCRIPTION = 1e4
SMALLEST_MEMORY_BYTES = 1 << 20

DTYPE_HINTS = {
    "bfloat16": "did you mean `bf16`?", "fp16": "did you mean `float16`?", "half": "did you mean `float16`?",
    "fp32": "did you mean `float32`?", "fp64": "did you mean `float64`?", "tf32": "leave it out; `float32` is the peak without TF32",
    "nvfp4": "did you mean `fp4`?", "mxfp4": "did you mean `fp4`?",
}  # fmt: skip
TIER_HINTS = {
    "bandwidth": "did you mean `bandwidth_bytes_per_s`, per direction and GPU?",
    "latency": "did you mean `latency_s`?",
    "gpus": "did you mean `size`, GPUs in one unit of this tier?",
}


def resolve_cluster(text: str, key: str = "--cluster") -> Cluster:
    """A name of the catalog, or the path of a TOML file.

    Args:
        text: what the user wrote. key: where the user wrote it, for mistakes.

    Raises:
        InputError: neither a name of the catalog nor a file, or the file is not a cluster.
    """
    if text.lower() in list_names("clusters"):
        return _load_known(catalog_path("clusters", text, key))
    if text.lower().endswith(".toml") or "/" in text or "\\" in text or os.path.isfile(text):
        return load_cluster(Path(text))
    if not text.strip():
        raise InputError([Mistake("", key, text, "a name of `meshwright catalog clusters`, or a TOML file", problem="is empty")])
    return load_cluster(catalog_path("clusters", text, key))


def load_cluster(path: Path) -> Cluster:
    """The cluster of a TOML file. Raises InputError with every mistake in it."""
    return read_cluster(read_toml(path), str(path), default_name=path.stem)


_load_known = cache(load_cluster)
"""The catalog's own files are read once; a user's may change while a program runs."""


def load_device(name: str) -> Device:
    """A device of the catalog. Raises InputError: there is none of that name."""
    path = catalog_path("devices", name)
    with Mistakes.of(str(path)) as mistakes:
        device = read_device(Table(read_toml(path), mistakes))
    assert device is not None  # the catalog's own files have no mistakes
    return device


def read_cluster(values: Mapping[str, object], file: str, default_name: str | None = None) -> Cluster:
    """A cluster from the tables of a file.

    Args:
        values: what tomllib made of it. file: named in mistakes. default_name: for a table without a ``name``.

    Raises:
        InputError: every mistake found. What is returned keeps: sizes of tiers grow, each divides the next, only the
            outermost may be absent; where it is not, ``num_gpus`` is given and no larger.
    """
    with Mistakes.of(file) as mistakes:
        table = Table(values, mistakes)
        name = table.text("name") if default_name is None or "name" in table else default_name
        device = _device_of(table)
        num_gpus = table.integer("num_gpus", None)
        source = _source_of(table)
        tiers = _tiers_of(table)
        num_gpus = _fit_num_gpus(table, num_gpus, tiers)
        table.refuse_unread()
    assert device is not None
    return Cluster(name=name, device=device, tiers=tuple(tiers), num_gpus=num_gpus, source=source)


def read_device(table: Table) -> Device | None:
    """A device from its table; None, with the mistakes noted, where it has some."""
    before = len(table.mistakes.found)
    name = table.text("name")
    vendor = table.text("vendor", "nvidia")
    generation = table.text("generation", "")
    memory_bytes = table.byte_count("memory_bytes", low=SMALLEST_MEMORY_BYTES)
    low, high = BANDWIDTH_BOUNDS
    hbm_bandwidth = table.number("hbm_bandwidth_bytes_per_s", low=low, high=high, unit="bytes per second: 3.35 TB/s is 3350e9")
    reserved_bytes = table.byte_count("reserved_bytes", low=0)
    if table.sound("memory_bytes", "reserved_bytes") and reserved_bytes >= memory_bytes:
        table.note("reserved_bytes", f"less than memory_bytes = {memory_bytes}", problem="leaves no memory")
    power_w = table.number("power_w", None, low=1.0, high=1e5, unit="watts of one board")
    peaks = _peaks_of(table)
    source = _source_of(table)
    table.refuse_unread({"memory": "did you mean `memory_bytes`?", "peak_flops": "did you mean `[peak_flops_per_s]`?"})
    if len(table.mistakes.found) > before:
        return None
    return Device(
        name=name, memory_bytes=memory_bytes, hbm_bandwidth_bytes_per_s=hbm_bandwidth, peak_flops_per_s=peaks,
        reserved_bytes=reserved_bytes, vendor=vendor, generation=generation, power_w=power_w, source=source,
    )  # fmt: skip


def _device_of(table: Table) -> Device | None:
    """The device that the key names, or that its table describes."""
    if isinstance(table.values.get("device"), dict):
        inner = table.table("device")
        return None if inner is None else read_device(inner)
    names = list_names("devices")
    name = table.choice("device", names)
    return load_device(name) if table.sound("device") else None


def _peaks_of(table: Table) -> tuple[tuple[str, float], ...]:
    inner = table.table("peak_flops_per_s")
    if inner is None:
        return ()
    low, high = PEAK_BOUNDS
    known = [dtype for dtype in DTYPE_BYTES if dtype in inner]
    peaks = {dtype: inner.number(dtype, low=low, high=high, unit=PEAK_UNIT) for dtype in known}
    inner.refuse_unread(DTYPE_HINTS)
    if not inner.values:
        table.note("peak_flops_per_s", "at least one dense peak, e.g. bf16 = 989e12", problem="is empty")
    return tuple((dtype, peaks[dtype]) for dtype in inner if dtype in peaks)  # in the order of the file


def _tiers_of(table: Table) -> list[Tier]:
    tables = table.tables("tiers")
    tiers = [_tier_of(inner, innermost=i == 0, outermost=i == len(tables) - 1) for i, inner in enumerate(tables)]
    smaller: int | None = None
    for inner, tier in zip(tables, tiers, strict=True):
        if tier.size is None or not inner.sound("size"):
            smaller = None
            continue
        if smaller is not None and (tier.size <= smaller or tier.size % smaller):
            problem = "does not grow" if tier.size <= smaller else "cuts a unit of the tier inside it"
            hint = "tiers are listed innermost first, and `size` counts GPUs"
            inner.note("size", f"a multiple of {smaller}, the tier before it, and larger", hint, problem)
        smaller = tier.size
    return tiers


def _tier_of(table: Table, innermost: bool, outermost: bool) -> Tier:
    low, high = BANDWIDTH_BOUNDS
    name = table.text("name")
    size = table.integer("size", None, low=2) if outermost else table.integer("size", low=2)
    bandwidth = table.number("bandwidth_bytes_per_s", low=low, high=high, unit=BANDWIDTH_UNIT)
    pair_bandwidth = table.number("pair_bandwidth_bytes_per_s", None, low=low, high=high, unit=BANDWIDTH_UNIT)
    sound = table.sound("bandwidth_bytes_per_s", "pair_bandwidth_bytes_per_s")
    if sound and pair_bandwidth is not None and pair_bandwidth > bandwidth:
        table.note("pair_bandwidth_bytes_per_s", f"at most bandwidth_bytes_per_s = {bandwidth:g}", problem="is above the GPU's total")
    latency_s = table.number("latency_s", low=0.0, high=LONGEST_LATENCY_S, unit=LATENCY_UNIT)
    oversubscription = table.number("oversubscription", 1.0, low=1.0, high=LARGEST_OVERSUBSCRIPTION)
    reduces = table.flag("in_network_reduction", False)
    network, curves = network_of(table, spans_nodes=not innermost)
    source = _source_of(table)
    table.refuse_unread(TIER_HINTS)
    return Tier(
        name=name, size=size, bandwidth_bytes_per_s=bandwidth, latency_s=latency_s, oversubscription=oversubscription,
        in_network_reduction=reduces, pair_bandwidth_bytes_per_s=pair_bandwidth, network=network, curves=curves, source=source,
    )  # fmt: skip


def _fit_num_gpus(table: Table, num_gpus: int | None, tiers: list[Tier]) -> int | None:
    """``num_gpus``, which an outermost tier with a size bounds and defaults."""
    limit = tiers[-1].size if tiers else None
    if limit is None:
        return num_gpus
    if num_gpus is None:
        return limit
    if table.sound("num_gpus") and num_gpus > limit:
        hint = "leave `size` out of the outermost tier if it holds any number of GPUs"
        table.note("num_gpus", f"at most {limit}, the size of the outermost tier", hint, "is more than the tiers hold")
    return num_gpus


def _source_of(table: Table) -> str:
    """Where the values are from: one text (``source``), or a text per key (``[sources]``), which is joined."""
    source = table.text("source", "", multiline=True)
    inner = table.table("sources", required=False)
    if inner is None:
        return source
    parts = [source] if source else []
    for key in inner:
        if key not in table.values:
            inner.note(key, "keys of this table", problem="is not a key of this table")
        parts.append(f"{key}: {inner.text(key)}")
    return "; ".join(parts)
