"""A user's own cluster file: what is read, and every mistake in it, told together."""

from __future__ import annotations

import math
import os
import re

import pytest

from meshwright.catalog import ROOT as CATALOG
from meshwright.errors import InputError
from meshwright.spec.cluster import Cluster, Device, Tier
from meshwright.spec.files import parse_toml
from meshwright.spec.load_cluster import load_cluster, load_device, read_cluster, resolve_cluster
from shared_data import ROOT

OWN = """
name = "own"
num_gpus = 64
source = "measured, 2025"

[device]
name = "chip"
memory_bytes = "80GiB"
hbm_bandwidth_bytes_per_s = 3350e9
reserved_bytes = 2e9
peak_flops_per_s = { fp8 = 1979e12, bf16 = 989e12 }

[[tiers]]
name = "nvlink"
size = 8
bandwidth_bytes_per_s = 450_000_000_000
latency_s = 1e-6
in_network_reduction = true

[[tiers]]
name = "spine"
bandwidth_bytes_per_s = 50e9
latency_s = 0
oversubscription = 2
sources = { latency_s = "ideal" }
"""


def mistakes_of(text):
    with pytest.raises(InputError) as caught:
        read_cluster(parse_toml(text, "own.toml"), "own.toml", default_name="own")
    assert all(mistake.file == "own.toml" for mistake in caught.value.mistakes)
    return {mistake.key: mistake for mistake in caught.value.mistakes}


def with_line(old, new):
    assert old in OWN
    return OWN.replace(old, new, 1)


def test_a_cluster_with_a_device_of_its_own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    cluster = resolve_cluster(str(path))
    assert (cluster.name, cluster.num_gpus, cluster.source, cluster.gpus_per_node) == ("own", 64, "measured, 2025", 8)
    assert cluster.device.memory_bytes == 80 << 30 and cluster.device.reserved_bytes == 2 * 10**9
    assert cluster.device.peak_flops_per_s == (("fp8", 1979e12), ("bf16", 989e12))
    inner, outer = cluster.tiers
    assert (inner.size, inner.bandwidth_bytes_per_s, inner.latency_s, inner.in_network_reduction) == (8, 450e9, 1e-6, True)
    assert (outer.size, outer.loaded_bandwidth_bytes_per_s, outer.source) == (None, 25e9, "latency_s: ideal")


def test_a_device_of_the_catalog_and_the_file_as_name(tmp_path, monkeypatch):
    text = OWN.replace('name = "own"', "").split("[device]")[0] + 'device = "h100-sxm"\n[[tiers]]' + OWN.split("[[tiers]]", 1)[1]
    (tmp_path / "pod").write_text(text)
    monkeypatch.chdir(tmp_path)
    cluster = resolve_cluster("pod")  # a file without .toml is found where it is
    assert cluster.name == "pod" and cluster.device == load_device("h100-sxm")


def test_a_name_of_the_catalog_wins_over_a_folder(tmp_path, monkeypatch):
    os.mkdir(tmp_path / "l40s")
    monkeypatch.chdir(tmp_path)
    assert resolve_cluster("L40S").name == "l40s"


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("h100-smx", "is not in the catalog of clusters", "did you mean `h100-sxm`?"),
        ("gb200", "is not in the catalog of clusters", "did you mean `gb200-nvl72`?"),
        ("", "is empty", ""),
        ("./h100-sxm", "does not exist", ""),
        ("gone.toml", "does not exist", ""),
        ("/", "is a folder", ""),
        ("\0", "is not in the catalog of clusters", "`meshwright catalog clusters` lists them"),
    ],
)
def test_neither_name_nor_file(text, problem, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no file there that a name could be near to
    with pytest.raises(InputError) as caught:
        resolve_cluster(text)
    (mistake,) = caught.value.mistakes
    assert (mistake.problem, mistake.hint) == (problem, hint)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("bandwidth_bytes_per_s = 50e9", "bandwidth_bytes_per_s = 0", "tiers[1].bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s = 50e9", "bandwidth_bytes_per_s = -50e9", "tiers[1].bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s = 50e9", "bandwidth_bytes_per_s = inf", "tiers[1].bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s = 50e9", "bandwidth_bytes_per_s = 50", "tiers[1].bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s = 50e9", "", "tiers[1].bandwidth_bytes_per_s"),
        ("latency_s = 1e-6", "latency_s = nan", "tiers[0].latency_s"),
        ("latency_s = 1e-6", "latency_s = -1e-6", "tiers[0].latency_s"),
        ("latency_s = 1e-6", "latency_s = 3", "tiers[0].latency_s"),
        ("latency_s = 1e-6", "latency_s = '1us'", "tiers[0].latency_s"),
        ("oversubscription = 2", "oversubscription = 0.5", "tiers[1].oversubscription"),
        ("in_network_reduction = true", "in_network_reduction = 1", "tiers[0].in_network_reduction"),
        ("size = 8", "size = 8.0", "tiers[0].size"),
        ("size = 8", "size = 1", "tiers[0].size"),
        ("size = 8", "size = 100_000_001", "tiers[0].size"),
        ("size = 8", "", "tiers[0].size"),
        ("size = 8", "size = 8\npair_bandwidth_bytes_per_s = 500e9", "tiers[0].pair_bandwidth_bytes_per_s"),
        ("num_gpus = 64", "num_gpus = 0", "num_gpus"),
        ("num_gpus = 64", "num_gpus = true", "num_gpus"),
        ('memory_bytes = "80GiB"', "memory_bytes = 80", "device.memory_bytes"),
        ('memory_bytes = "80GiB"', "memory_bytes = 1979-05-27", "device.memory_bytes"),
        ("reserved_bytes = 2e9", 'reserved_bytes = "80GiB"', "device.reserved_bytes"),
        ("reserved_bytes = 2e9", "reserved_bytes = -1", "device.reserved_bytes"),
        ("bf16 = 989e12", "bf16 = 989", "device.peak_flops_per_s.bf16"),
        ("bf16 = 989e12", "bfloat16 = 989e12", "device.peak_flops_per_s.bfloat16"),
        ("{ fp8 = 1979e12, bf16 = 989e12 }", "{}", "device.peak_flops_per_s"),
        ("{ fp8 = 1979e12, bf16 = 989e12 }", "989e12", "device.peak_flops_per_s"),
        ('name = "chip"', 'name = ""', "device.name"),
        ('name = "chip"', 'name = "chip"\nflops = 1', "device.flops"),
        ("sources = { latency_s =", "sources = { bandwith =", "tiers[1].sources.bandwith"),
        ("[device]", "[devise]", "device"),
        ('name = "own"', 'name = "own"\ntier = 3', "tier"),
    ],
)
def test_one_mistake(old, new, key):
    found = mistakes_of(with_line(old, new))
    assert key in found
    assert len(found) == 1 or old == "[device]"  # an unknown table, and the missing one
    assert found[key].legal


def test_hints_say_the_unit_and_the_right_key():
    assert "450 GB/s is 450e9" in mistakes_of(with_line("= 50e9", "= 50"))["tiers[1].bandwidth_bytes_per_s"].hint
    assert "3e-6" in mistakes_of(with_line("latency_s = 1e-6", "latency_s = 3"))["tiers[0].latency_s"].hint
    found = mistakes_of(with_line("bandwidth_bytes_per_s = 50e9", "bandwidth = 50e9"))
    assert "bandwidth_bytes_per_s" in found["tiers[1].bandwidth"].hint
    assert mistakes_of(with_line("bf16 = 989e12", "fp16 = 989e12"))["device.peak_flops_per_s.fp16"].hint == "did you mean `float16`?"
    assert mistakes_of(OWN.replace("[device]", "[devise]"))["devise"].hint == "did you mean `device`?"


def test_all_mistakes_are_told_together():
    text = OWN.replace("num_gpus = 64", "num_gpus = -1").replace("latency_s = 1e-6", "latency_s = inf").replace('"80GiB"', "nan")
    assert list(mistakes_of(text)) == ["device.memory_bytes", "num_gpus", "tiers[0].latency_s"]


MIDDLE = '\n[[tiers]]\nname = "leaf"\nsize = {}\nbandwidth_bytes_per_s = 50e9\nlatency_s = 2e-6\n\n[[tiers]]\nname = "spine"'


def with_leaf(size):
    return OWN.replace('\n[[tiers]]\nname = "spine"', MIDDLE.format(size))


def test_tiers_of_any_depth():
    cluster = read_cluster(parse_toml(with_leaf(256), ""), "")
    assert [tier.size for tier in cluster.tiers] == [8, 256, None]


@pytest.mark.parametrize(("size", "problem"), [(8, "does not grow"), (4, "does not grow"), (12, "cuts a unit of the tier inside it")])
def test_tiers_that_do_not_nest(size, problem):
    found = mistakes_of(with_leaf(size))
    assert list(found) == ["tiers[1].size"] and found["tiers[1].size"].problem == problem


def test_a_wrong_size_is_no_reason_to_doubt_the_next():
    assert list(mistakes_of(with_leaf('"256"'))) == ["tiers[1].size"]


def test_an_outermost_tier_with_a_size_bounds_the_cluster():
    text = OWN.replace('name = "spine"', 'name = "spine"\nsize = 64')
    assert read_cluster(parse_toml(text, ""), "").num_gpus == 64
    assert read_cluster(parse_toml(text.replace("num_gpus = 64", ""), ""), "").num_gpus == 64
    assert list(mistakes_of(text.replace("num_gpus = 64", "num_gpus = 65"))) == ["num_gpus"]


@pytest.mark.parametrize("tiers", ["", "tiers = []", "tiers = 3", "tiers = [3]", "[tiers]\nsize = 8"])
def test_no_tiers(tiers):
    text = OWN.split("[[tiers]]")[0].replace("[device]", "%s\n[device]" if tiers.startswith("tiers") else "[device]\n%s") % ""
    text = f"{tiers}\n{text}" if tiers.startswith("tiers") else text + tiers
    assert list(mistakes_of(text)) == ["tiers"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1, 0, True, "x", None, [], {}, 10**400])
def test_no_value_at_all_is_taken_for_a_bandwidth(bad):
    values = parse_toml(OWN, "")
    values["tiers"][0]["bandwidth_bytes_per_s"] = bad
    with pytest.raises(InputError):
        read_cluster(values, "")


def test_the_examples_of_the_documentation_are_clusters():
    text = (ROOT / "docs" / "reference" / "cluster-file.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    pod, measured, boxes = (read_cluster(parse_toml(example, "example"), "example", "example") for example in examples)
    assert [tier.size for tier in pod.tiers] == [8, 128, None] and pod.device == load_device("h100-sxm")
    (curve,) = measured.tiers[0].curves
    assert (curve.op, curve.ranks, curve.bandwidth_bytes_per_s, measured.tiers[1].curves) == ("all_gather", (2, 4, 8), 401e9, ())
    assert boxes.num_gpus == 16 and boxes.device.peak("fp8") == 1979e12
    for key in (*Tier.__dataclass_fields__, *Device.__dataclass_fields__, *Cluster.__dataclass_fields__):
        assert key in text, f"`{key}` is not described"


def test_a_tier_may_name_curves_of_the_catalog_or_of_a_file(tmp_path):
    text = OWN.replace("in_network_reduction = true", 'in_network_reduction = true\nnetwork = "h100-sxm"')
    (tmp_path / "named.toml").write_text(text)
    named = load_cluster(tmp_path / "named.toml").tiers
    assert named[0].curves == resolve_cluster("h100-sxm").tiers[0].curves and len(named[0].curves) == 5 and named[1].curves == ()
    (tmp_path / "nets").mkdir()
    copied = (CATALOG / "network" / "a100-sxm.toml").read_text()
    (tmp_path / "nets" / "mine.toml").write_text(copied)
    (tmp_path / "own.toml").write_text(text.replace('"h100-sxm"', '"nets/mine.toml"'))
    assert load_cluster(tmp_path / "own.toml").tiers[0].curves == resolve_cluster("a100-sxm-80g").tiers[0].curves


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ('network = "h100"', "did you mean `h100-sxm`?"),
        ('network = "gone.toml"', "gone.toml"),
        ("network = 8", "tiers[0].network"),
        ('curves = [{ op = "all_gather", algorithm = "tree" }]', "tiers[0].curves[0].algorithm"),
        ('curves = [{ op = "all_gather", algorithm = "ring", launch_s = -1 }]', "tiers[0].curves[0].launch_s"),
        ("curves = []", "tiers[0].curves"),
    ],
)
def test_a_network_that_cannot_be_read_is_a_mistake_of_the_cluster(tmp_path, network, message):
    (tmp_path / "own.toml").write_text(OWN.replace("in_network_reduction = true", network))
    with pytest.raises(InputError) as caught:
        load_cluster(tmp_path / "own.toml")
    assert message in str(caught.value)


def test_an_outer_tier_takes_curves_across_nodes_only(tmp_path):
    text = OWN.replace("in_network_reduction = true", "").replace('name = "spine"', 'name = "spine"\nnetwork = "h100-sxm"')
    assert "network" in text
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(InputError, match="a network measured on several nodes"):
        load_cluster(tmp_path / "own.toml")
