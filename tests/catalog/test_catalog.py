"""Finding entries of the catalog, and the command that lists them."""

from __future__ import annotations

import json
import re
from importlib import import_module

import pytest

from meshwright.catalog import list_names, path
from meshwright.errors import InputError

DEVICE = """
memory_bytes = "80GiB"
hbm_bandwidth_bytes_per_s = 3.35e12
[peak_flops_per_s]
bf16 = 989.4e12
fp8 = 2e15
int8 = 2e15
"""

CLUSTER = """
device = "h100"
[[tiers]]
name = "nvlink"
size = 8
bandwidth_bytes_per_s = 450e9
[[tiers]]
name = "rail"
bandwidth_bytes_per_s = 50e9
"""

MODEL = """
source = "a paper"
vocab_size = 100
hidden_size = %d
ffn_size = 1000
layers = ["2 x dense"]
[attention]
num_heads = 8
"""

FILES = {
    "models/llama-2-13b.toml": MODEL % 5120,
    "models/llama-2-7b.toml": MODEL % 4096,
    "models/llama-2-70b.toml": MODEL % 8192,
    "devices/h100.toml": DEVICE,
    "clusters/pod.toml": CLUSTER,
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A catalog of a few entries in place of ours."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(import_module("meshwright.catalog"), "ROOT", tmp_path)
    return tmp_path


def test_names_are_listed_by_size(small):
    assert list_names("models") == ("llama-2-7b", "llama-2-13b", "llama-2-70b")


def test_an_entry_is_found_in_any_case(small):
    assert path("models", "Llama-2-7B") == small / "models" / "llama-2-7b.toml"


@pytest.mark.parametrize("name", ["llama-2-8b", "../models/llama-2-7b", "", "llama-2-7b.toml", "llama-2-7b\x00"])
def test_an_unknown_name_lists_the_known_ones(name, small):
    with pytest.raises(InputError) as error:
        path("models", name, key="MODEL")
    (mistake,) = error.value.mistakes
    assert (mistake.key, mistake.value, mistake.legal) == ("MODEL", name, "llama-2-7b, llama-2-13b, llama-2-70b")


def test_a_near_miss_gets_a_suggestion(small):
    with pytest.raises(InputError, match="did you mean `llama-2-70b`"):
        path("models", "lama-2-70b")


def test_the_command_lists_names_and_figures_with_units(small, meshwright):
    models = [re.split("  +", line) for line in meshwright("catalog", "models").stdout.splitlines()]
    # 2 layers of 4 D^2 + 3 x 1000 D, their norms, the embedding and the head; all of them are active
    assert [line[:5] for line in models[-3:]] == [
        ["llama-2-7b", "160M", "160M", "2 x dense", "4,096"],
        ["llama-2-13b", "241M", "241M", "2 x dense", "5,120"],
        ["llama-2-70b", "588M", "588M", "2 x dense", "8,192"],
    ]
    header, _, device = meshwright("catalog", "devices").stdout.splitlines()[2:]
    assert re.split("  +", header) == ["name", "memory", "hbm bandwidth", "peak flops"]
    assert re.split("  +", device) == ["h100", "80 GiB", "3350 GB/s", "bf16 989T, fp8/int8 2P"]
    cluster = meshwright("catalog", "clusters").stdout.splitlines()[-1]
    assert re.split("  +", cluster) == ["pod", "h100", "nvlink 8 x 450 GB/s < rail 50 GB/s"]


def test_the_command_gives_everything_as_json(small, meshwright):
    peaks = {"bf16": 989.4e12, "fp8": 2e15, "int8": 2e15}
    device = {"name": "h100", "memory_bytes": 80 * 2**30, "hbm_bandwidth_bytes_per_s": 3.35e12, "peak_flops_per_s": peaks}
    assert json.loads(meshwright("catalog", "devices", "--json").stdout) == {"devices": [device]}


def test_an_unknown_kind_is_the_users_mistake(meshwright):
    result = meshwright("catalog", "model", "--json")
    assert result.exit_code == 2
    (mistake,) = json.loads(result.stdout)["errors"]
    assert (mistake["value"], mistake["legal"], mistake["hint"]) == ("model", "models, clusters, devices", "did you mean `models`?")
