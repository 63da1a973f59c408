"""Thousands of damaged cluster files: never anything but an InputError that can be printed, or a cluster that is sound."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest

from damage import mutate_text, mutate_values
from meshwright.catalog import list_names
from meshwright.catalog import path as catalog_path
from meshwright.errors import InputError
from meshwright.spec.cluster import Cluster
from meshwright.spec.files import parse_toml
from meshwright.spec.load_cluster import read_cluster, resolve_cluster

CLUSTER = catalog_path("clusters", "h100-sxm").read_text()
DEVICE = catalog_path("devices", "h100-sxm").read_text().replace("[sources]", "[device.sources]").replace("[peak", "[device.peak")
INLINE = CLUSTER.replace('device = "h100-sxm"', "").replace("[[tiers]]", f"[device]\n{DEVICE}\n[[tiers]]", 1)


def check_sound(cluster: Cluster) -> None:
    """What every caller may rely on."""
    device = cluster.device
    assert 0 <= device.reserved_bytes < device.memory_bytes <= 1 << 50
    assert 0 < device.hbm_bandwidth_bytes_per_s < math.inf
    assert device.peak_flops_per_s and all(0 < peak < math.inf for _, peak in device.peak_flops_per_s)
    sizes = [tier.size for tier in cluster.tiers]
    assert sizes and all(size is not None for size in sizes[:-1])
    known = [size for size in sizes if size is not None]
    assert all(1 < a < b and b % a == 0 for a, b in pairwise(known)) and max(known, default=1) <= 10**8
    assert sizes[-1] is None or (cluster.num_gpus is not None and cluster.num_gpus <= sizes[-1])
    assert cluster.num_gpus is None or 1 <= cluster.num_gpus <= 10**8
    for tier in cluster.tiers:
        assert 0 < tier.loaded_bandwidth_bytes_per_s <= tier.bandwidth_bytes_per_s < math.inf
        assert tier.pair_bandwidth_bytes_per_s is None or 0 < tier.pair_bandwidth_bytes_per_s <= tier.bandwidth_bytes_per_s
        assert 0 <= tier.latency_s < 1 and isinstance(tier.latency_s, float) and isinstance(tier.in_network_reduction, bool)
    for text in (cluster.name, device.name, *(tier.name for tier in cluster.tiers)):
        assert text.isprintable() and text.strip()


def check_printable(error: InputError) -> None:
    assert error.mistakes
    str(error).encode("utf-8")
    json.dumps([mistake.as_json() for mistake in error.mistakes])
    assert all(mistake.legal for mistake in error.mistakes)


def outcome(call, *args) -> bool:
    """Whether it was accepted, all checked."""
    try:
        cluster = call(*args)
    except InputError as error:
        check_printable(error)
        return False
    check_sound(cluster)
    return True


@pytest.mark.parametrize("text", [CLUSTER, INLINE], ids=["named device", "own device"])
def test_damaged_values(text):
    rng = random.Random(1)
    values = parse_toml(text, "")
    assert outcome(read_cluster, values, "x")
    accepted = sum(outcome(read_cluster, mutate_values(values, rng), "x", "own") for _ in range(4000))
    assert 20 < accepted < 2000, "the damage is neither all harmless nor all caught at once"


@pytest.mark.parametrize("text", [CLUSTER, INLINE], ids=["named device", "own device"])
def test_damaged_text(text):
    rng = random.Random(2)

    def read(damaged: str) -> Cluster:
        return read_cluster(parse_toml(damaged, "x"), "x", "own")

    accepted = sum(outcome(read, mutate_text(text, rng)) for _ in range(3000))
    assert 20 < accepted < 2400


def test_damaged_bytes_on_disk(tmp_path):
    rng = random.Random(3)
    path = tmp_path / "x.toml"
    for _ in range(300):
        data = bytearray(INLINE.encode())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        outcome(resolve_cluster, str(path))


def test_any_word_is_a_name_a_file_or_a_mistake():
    rng = random.Random(4)
    names = list_names("clusters")
    for _ in range(300):
        outcome(resolve_cluster, mutate_text(rng.choice(names), rng))
