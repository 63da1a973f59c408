"""``meshwright collectives`` on the command line: text, JSON, drawing, and what it refuses."""

import json
from xml.etree import ElementTree

import pytest


def test_prices_every_algorithm_and_says_where_the_fastest_changes(meshwright):
    result = meshwright("collectives", "all_reduce", "--size", "128MiB", "--ranks", "64", "--cluster", "h100-sxm")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("all_reduce of 128 MiB over 64 ranks on h100-sxm\n")
    for name in ("naive", "ring *", "double_tree", "halving_doubling", "hierarchical", "fastest above: ring"):
        assert name in result.stdout
    assert "16 GiB" in result.stdout


def test_json_of_one_and_of_all_collectives(meshwright):
    one = json.loads(meshwright("collectives", "all_gather", "--ranks", "8", "--json").stdout)
    assert (one["op"], one["ranks"], one["size_bytes"], one["best"]) == ("all_gather", 8, 128 << 20, None)
    every = json.loads(meshwright("collectives", "--cluster", "a100-sxm-80g", "--json").stdout)
    assert [answer["op"] for answer in every["collectives"]] == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    assert {answer["ranks"] for answer in every["collectives"]} == {8}


def test_shows_who_sends_what(meshwright, tmp_path):
    file = tmp_path / "ring.svg"
    result = meshwright("collectives", "all_reduce", "--ranks", "4", "--show", "-o", str(file))
    assert result.exit_code == 0
    assert "step 6 of 6" in result.stdout
    assert result.stderr == f"wrote {file}\n"
    assert ElementTree.parse(file).getroot().tag.endswith("svg")
    answer = json.loads(meshwright("collectives", "all_to_all", "--ranks", "4", "--show", "--json").stdout)
    assert (answer["algorithm"], answer["steps"], len(answer["transfers"])) == ("pairwise", 3, 12)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["all_redcue"], "did you mean `all_reduce`?"),
        (["--size", "3 parsecs"], "`--size` = '3 parsecs' is not legal"),
        (["--ranks", "0"], "`--ranks` = '0' is not legal"),
        (["--ranks", "200000"], "`--ranks` = 200000 is more than any job has"),
        (["--show", "--ranks", "300"], "hint: without --show and --run up to 131,072 are priced"),
        (["--algorithm", "ring"], "`--algorithm` is only used with --show"),
        (["--show", "--algorithm", "rign"], "did you mean `ring`?"),
        (["--show", "--ranks", "64"], "is too many to look at"),
        (["--show", "-o", "/no/such/folder/ring.svg"], "there is no folder"),
        (["--run", "--size", "1GiB"], "at most 16MiB with --run"),
        (["--cluster", "h1000"], "is not in the catalog"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_exits_2_with_the_reason(meshwright, args, message):
    result = meshwright("collectives", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.dist
def test_run_executes_on_local_processes(meshwright):
    result = meshwright("collectives", "all_to_all", "--run", "--ranks", "4", "--size", "64KiB", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["algorithms"]
    assert [row["name"] for row in rows] == ["direct", "pairwise", "bruck", "rail", "hierarchical"]
    for row in rows:
        assert row["executed"] and row["correct"] and row["bytes_counted"] == row["bytes_per_rank"]
