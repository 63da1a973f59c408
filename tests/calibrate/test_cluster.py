"""A cluster is recovered from measurements made with it, used as a cluster, and wrong input is refused with line and reason."""

import json
from dataclasses import replace

import pytest

from calibrate.test_nccl_tests import GOOD
from meshwright.calibrate.bench_file import SCHEMA
from meshwright.calibrate.cluster import calibrate, cluster_text
from meshwright.calibrate.device_names import CLUSTERS, cluster_named
from meshwright.calibrate.network import Point
from meshwright.catalog import list_names
from meshwright.collectives.price import Group, collective_s
from meshwright.errors import InputError
from meshwright.spec.cluster import Cluster
from meshwright.spec.load_cluster import resolve_cluster
from nccl_facts import OPS, nccl_points

SIZES = [1 << k for k in range(10, 33, 2)]
COLLECTIVES = tuple(OPS.values())
H800 = resolve_cluster("h800-sxm")


def slower(cluster: Cluster) -> Cluster:
    """The same cluster with other latencies and bandwidths in every tier."""
    tiers = [replace(t, bandwidth_bytes_per_s=t.bandwidth_bytes_per_s * 0.7, latency_s=t.latency_s * 3) for t in cluster.tiers]
    return replace(cluster, tiers=tuple(tiers))


def measured(cluster: Cluster, ops=COLLECTIVES, nodes=(1, 2, 4)) -> list[Point]:
    """What nccl-tests would print on a cluster that is exactly as we price it."""
    shapes = [(n, 1) for n in (2, 4, 8)] if 1 in nodes else []
    shapes += [(8 * k, k) for k in nodes if k > 1]
    groups = [(n, k, Group(n, (n // k, *[n] * (len(cluster.tiers) - 1)))) for n, k in shapes]
    return [Point(op, n, M, collective_s(op, M, g, cluster.tiers), k, "made") for op in ops for n, k, g in groups for M in SIZES]


def test_inside_and_across_nodes_are_recovered_together():
    truth = slower(H800)
    points = [p for p in measured(truth) if p.op != "all_reduce"]
    cluster, found = calibrate(H800, points, "mine", "made up")
    assert [(one.tier, one.curve.op) for one in found] == [(t, op) for t in ("nvlink", "leaf") for op in COLLECTIVES[1:]]
    for one in found:
        # constants are written with four digits
        assert one.after < 1e-3 < 0.1 < one.before, one
    for n, k in ((2, 1), (8, 1), (16, 2), (64, 8)):
        group = Group(n, (n // k, n, n))
        for op in COLLECTIVES[1:]:
            for M in (3000, 3 << 20, 3 << 30):  # sizes, and eight nodes, that were not measured
                assert collective_s(op, M, group, cluster.tiers) == pytest.approx(collective_s(op, M, group, truth.tiers), rel=2e-3)


def test_the_file_is_read_back_as_the_same_cluster(tmp_path):
    cluster, _ = calibrate(H800, measured(slower(H800)), "mine", "made up")
    (tmp_path / "mine.toml").write_text(cluster_text(cluster))
    assert resolve_cluster(str(tmp_path / "mine.toml")) == cluster


def test_ops_that_were_not_measured_keep_their_curves_and_tiers_their_figures():
    h100 = resolve_cluster("h100-sxm")
    cluster, (one,) = calibrate(h100, measured(slower(H800), ("all_gather",), nodes=(1,)), "mine", "made up")
    assert one.curve.source == "made up" and cluster.tiers[1:] == h100.tiers[1:]
    kept = {(c.op, c.algorithm): c for c in cluster.tiers[0].curves}
    assert {(c.op, c.algorithm) for c in h100.tiers[0].curves} == set(kept)
    assert all(kept[c.op, c.algorithm] == c for c in h100.tiers[0].curves if c.op != "all_gather")


def test_hosts_of_an_nvlink_domain_are_no_nodes():
    """NVL72 has 18 hosts of 4 GPUs: 8 ranks on two hosts are inside the tier."""
    nvl72 = resolve_cluster("gb200-nvl72")
    points = [Point("all_gather", 8, M, 2e-5 + M / 5e11, nodes=2) for M in SIZES]
    _, (one,) = calibrate(nvl72, points, "mine", "made up")
    assert (one.tier, one.curve.nodes) == ("nvlink", 1)


def test_published_points_make_the_catalogs_curves_again():
    """The catalog's H200 curves are fits to these points; H800, which has none, becomes an H200 with them."""
    cluster, found = calibrate(H800, nccl_points("h200"), "mine", "published")
    h200 = {(c.op, c.algorithm): c for c in resolve_cluster("h200-sxm").tiers[0].curves}
    assert {(c.op, c.algorithm): replace(c, source="") for c in cluster.tiers[0].curves} == {
        k: replace(c, source="") for k, c in h200.items()
    }
    assert max(one.after for one in found) <= 0.08 < min(one.before for one in found)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([Point("all_gather", 16, M, 1e-3, 1, "x:3") for M in SIZES], "x:3: `ranks` = 16 are more than its innermost tier holds"),
        ([Point("all_gather", 9, M, 1e-3, 2, "x:3") for M in SIZES], "x:3: `ranks` = 9 are not spread evenly over 2 nodes"),
        ([Point("all_gather", 8, 1024, 1e-3, 1, "x:3")], "x:3: `different sizes` = 1 of all_gather is too few for a curve"),
        ([Point("all_gather", 8, M, -1e-3, 1, "x:3") for M in SIZES], "x:3: `time_s`"),
    ],
)
def test_points_that_cannot_be_fitted_are_refused(points, message):
    with pytest.raises(InputError) as caught:
        calibrate(H800, points, "mine", "made up")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("device", "cluster"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA A100-SXM4-80GB", "a100-sxm-80g"), ("NVIDIA A100-SXM4-40GB", "a100-sxm-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA GB200", "gb200-nvl72"),
        ("NVIDIA B200", "b200-sxm"),
        ("Tesla V100-SXM2-32GB", "v100-sxm"), ("AMD Instinct MI300X", "mi300x"), ("NVIDIA GeForce RTX 4090", None),
    ],
)  # fmt: skip
def test_clusters_by_the_name_of_their_device(device, cluster):
    assert cluster_named(device) == cluster
    assert {name for _, name in CLUSTERS} == set(list_names("clusters"))


def test_the_command_writes_a_cluster_that_can_be_used(meshwright, tmp_path):
    file, out = tmp_path / "nccl-tests.txt", tmp_path / "my-cluster.toml"
    file.write_text(GOOD.replace(" on node1 ", " on node0 "))
    result = meshwright("calibrate", str(file), "-o", str(out))
    assert result.exit_code == 0, result.stderr
    assert result.stderr == f"wrote {out}\n"
    assert result.stdout.startswith("my-cluster: h100-sxm with 1 curve fitted to 4 points\n")
    answer = json.loads(meshwright("calibrate", str(file), "-o", str(out), "--json").stdout)
    (curve,) = answer["curves"]
    assert (answer["base"], curve["op"], curve["algorithm"], curve["points"]) == ("h100-sxm", "all_reduce", "in_switch", 4)
    assert "nccl-tests.txt" in curve["source"] and 0 <= curve["median_error"] < 0.08
    priced = json.loads(meshwright("collectives", "all_reduce", "--size", "512MiB", "--ranks", "8", "--cluster", str(out), "--json").stdout)
    assert priced["priced_s"] == pytest.approx(2111.1e-6, rel=0.05)  # the last row of the file


@pytest.mark.parametrize(
    ("change", "args", "message"),
    [
        (("    15.60", "   -15.60"), (), "`line 16: time` = '-15.60'"),
        (("    25.40", "   0.0254"), (), "were times in ms and us"),
        (("H100", "H300"), (), "`--cluster` = 'NVIDIA H300 80GB HBM3' is not told by the device's name"),
        (("H100", "H300"), ("--cluster", "h300"), "is not in the catalog of clusters"),
        (("41.28   72.24      0    25.31   41.43   72.50      0", ""), (), "`line 17` = '1048576 524288 half sum -1 25.40' has 6 columns"),
    ],
)
def test_malformed_files_are_refused_and_nothing_is_written(meshwright, tmp_path, change, args, message):
    file, out = tmp_path / "nccl-tests.txt", tmp_path / "my-cluster.toml"
    assert change[0] in GOOD
    file.write_text(GOOD.replace(*change).replace(" on node1 ", " on node0 "))
    result = meshwright("calibrate", str(file), "-o", str(out), *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not out.exists()


def test_our_own_bench_is_read_as_well_and_names_no_device(meshwright, tmp_path):
    file, out = tmp_path / "bench.jsonl", tmp_path / "mine.toml"
    points = measured(slower(H800), ("all_gather",), nodes=(1, 2))
    rows = [{"op": p.op, "ranks": p.ranks, "nodes": p.nodes, "payload_bytes": p.payload_bytes, "time_s": float(p.time_s)} for p in points]
    file.write_text("\n".join(json.dumps(row) for row in [{"schema": SCHEMA}, *rows]))
    refused = meshwright("calibrate", str(file), "-o", str(out))
    assert refused.exit_code == 2 and "`--cluster` is missing" in refused.stderr and not out.exists()
    answer = json.loads(meshwright("calibrate", str(file), "-o", str(out), "--cluster", "h800-sxm", "--json").stdout)
    assert [(curve["tier"], curve["nodes"]) for curve in answer["curves"]] == [("nvlink", 1), ("leaf", 2)]
    # made by the same formula; constants are written with four digits
    assert all(curve["price_error"] < 1e-3 for curve in answer["curves"])
