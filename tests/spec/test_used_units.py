"""Jobs on racks of 72 GPUs."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.mesh import Leg, members_per_unit
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.used_units import with_used_units

RACKS = resolve_cluster("gb200-nvl72")


@pytest.mark.parametrize("gpus", [128, 256, 512, 1024, 4096])
def test_powers_of_two_take_64_of_72(gpus: int) -> None:
    """16 of a rack's 18 trays of four GPUs (NVIDIA, Slurm block scheduling for GB200: --segment=16): groups of 64 stay inside."""
    used, said = with_used_units(RACKS, gpus)
    assert [tier.size for tier in used.tiers] == [64, 8 * 64, None]
    assert said == f"64 of the 72 GPUs of each nvlink domain: {gpus:,} are no multiple of 72"
    assert members_per_unit([Leg(1, 64)], gpus, used.tiers[0].size) == 64
    assert members_per_unit([Leg(1, 64)], gpus, RACKS.tiers[0].size) == 8  # as ranks fill whole racks of 72
    assert with_used_units(used, gpus) == (used, "")


@pytest.mark.parametrize(
    ("cluster", "gpus"), [("gb200-nvl72", n) for n in (8, 64, 72, 144, 576, 80, 200)] + [("h100-sxm", n) for n in (12, 64)]
)
def test_other_jobs_take_units_as_they_are(cluster: str, gpus: int) -> None:
    """Of one rack, of whole racks, or of numbers that 64 does not divide either."""
    whole = resolve_cluster(cluster)
    assert with_used_units(whole, gpus) == (whole, "")


def test_an_estimate_says_so_and_keeps_a_group_of_64_inside() -> None:
    said = {"cluster": "gb200-nvl72", "seq": 8192, "batch": 512}
    wide = mw.ranks("llama-3.1-70b", cluster="gb200-nvl72", layout="dp=8x64 zero=3")
    assert {group.tier.name for group in wide.axes if group.axis == "dp_shard"} == {"nvlink"}
    found = mw.estimate("llama-3.1-70b", layout="dp=8x64 zero=3 mb=1", **said)  # type: ignore[arg-type]
    assert any("64 of the 72 GPUs" in text for text in found.assumed)
    assert not any(warning.code == "partial-node" for warning in found.warnings)
    whole = mw.estimate("llama-3.1-70b", layout="dp=1x576 zero=3 mb=1", **{**said, "batch": 576})  # type: ignore[arg-type]
    assert not any("of the 72 GPUs" in text for text in whole.assumed)
