"""``meshwright collectives all_to_all --experts``: the table, the JSON, a histogram, and what is refused."""

import json

import pytest

DEEPSEEK = ("collectives", "all_to_all", "--experts", "deepseek-v3", "--cluster", "h800-sxm", "--ranks", "64")


def test_every_way_is_counted_and_priced(meshwright):
    answer = json.loads(meshwright(*DEEPSEEK, "--json").stdout)
    ways = {(row["way"], row["limited"]): row for row in answer["ways"]}
    assert set(ways) == {(way, limited) for way in ("flat", "hierarchical", "fused") for limited in (True, False)}
    assert (answer["tokens"], answer["tiers"], answer["placement"]) == (4096, ["nvlink", "leaf"], None)
    assert ways["flat", False]["copies"] == pytest.approx([7.0, 7.0], rel=0.02)  # 8 experts, 7/8 of them elsewhere
    assert ways["fused", True]["copies"][1] == pytest.approx(3.63 * 7 / 8, rel=0.02)
    assert ways["fused", True]["dispatch_s"] < ways["fused", False]["dispatch_s"] < ways["flat", True]["dispatch_s"]


def test_the_text_marks_the_fastest(meshwright):
    result = meshwright(*DEEPSEEK)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "fused *" in result.stdout and "flat, any node" in result.stdout and "placed" not in result.stdout


def test_a_histogram_brings_the_tail_and_a_placement(meshwright, tmp_path):
    loads = tmp_path / "loads.json"
    loads.write_text(json.dumps({"loads": [100 + 900 * (expert < 8) for expert in range(128)]}))
    args = ("collectives", "all_to_all", "--experts", "qwen3-30b-a3b", "--cluster", "h100-sxm", "--ranks", "16", "--load", str(loads))
    answer = json.loads(meshwright(*args, "--json").stdout)
    ways = {(row["way"], row["placed"]): row for row in answer["ways"]}
    # rank 0 holds all eight hot experts: 8,000 of 20,000 choices, sixteen times 0.4
    assert ways["flat", False]["imbalance"] == pytest.approx(6.4, rel=0.03)
    placement = answer["placement"]
    assert placement["heaviest_bound"] <= placement["heaviest"] < 1.5
    assert placement["inside"] <= placement["inside_bound"] <= 1
    # the busiest of sixteen ranks, each the sum of some 4,000 draws of 512 tokens: 1.6 % is one standard deviation
    assert ways["flat", True]["imbalance"] == pytest.approx(placement["heaviest"], rel=0.06)
    assert ways["flat", True]["dispatch_s"] < 0.5 * ways["flat", False]["dispatch_s"]
    text = meshwright(*args).stdout
    assert "flat, placed" in text and "times the average load" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--experts", "llama-3.1-8b", "--cluster", "h100-sxm"), "has none"),
        (("--experts", "deepseek-v3"), "`--cluster` is missing"),
        (("--experts", "deepseek-v3", "--cluster", "h800-sxm", "--ranks", "48"), "a divisor of the 256 experts"),
        (("--experts", "deepseek-v3", "--cluster", "h800-sxm", "--load", "/no/such.json"), "does not exist"),
        (("--tokens", "512"), "`--tokens` is only used with --experts"),
        (("--load", "x.json"), "`--load` is only used with --experts"),
    ],
)
def test_wrong_input_is_refused(meshwright, args, message):
    result = meshwright("collectives", "all_to_all", *args)
    assert (result.exit_code, result.stdout) == (2, "") and message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"loads": [1, 2]}', "256 numbers, one for each expert"),
        ('{"loads": [1, "x"]}', "loads[1]"),
        ('{"loads": [1, -2]}', "loads[1]"),
        ('{"load": [1]}', "`loads` is missing"),
        ('{"loads": [1], "more": 2}', "`more` is not a known key"),
        ("[1, 2]", "holds an array"),
    ],
)
def test_a_file_of_loads_that_is_wrong_is_refused(meshwright, tmp_path, text, message):
    (tmp_path / "loads.json").write_text(text)
    result = meshwright(*DEEPSEEK, "--load", str(tmp_path / "loads.json"))
    assert result.exit_code == 2 and message in result.stderr and "loads.json" in result.stderr


def test_only_an_exchange_has_experts(meshwright):
    result = meshwright("collectives", "all_gather", "--experts", "deepseek-v3", "--cluster", "h800-sxm")
    assert result.exit_code == 2 and "all_to_all with --experts" in result.stderr
