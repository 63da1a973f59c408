"""estimate, explain, memory and ranks from the command line: JSON keys, exit codes, messages."""

from __future__ import annotations

import json

import pytest

from meshwright.cli.estimate import MFU_CONVENTIONS
from meshwright.model_flops import CONVENTIONS
from meshwright.spec.names import PHASES

JOB = ["llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "64", "--seq", "8192", "--batch", "512"]
FITS = ["--layout", "tp=8 sp pp=4 zero=1 mb=1"]
TOO_LARGE = ["--layout", "dp=1x64 zero=3 mb=1"]

ESTIMATE_KEYS = [
    "layout", "step_s", "step_s_low", "step_s_high", "mfu", "mfu_convention", "tokens_per_s_per_gpu", "parts", "memory_bytes",
    "reserved_bytes", "fits", "bubble_fraction", "assumed", "warnings",
]  # fmt: skip
PARTS = ["compute_s", "recompute_s", "tp_s", "cp_s", "ep_s", "pp_s", "bubble_s", "dp_s", "optimizer_s", "other_s"]
ROW_KEYS = [
    "phase", "layer", "name", "before", "after", "op", "axis", "tier", "payload_bytes", "wire_bytes", "flops", "times", "each_s", "why",
]  # fmt: skip


def answer_of(result):
    """The one object on stdout."""
    return json.loads(result.stdout)


def errors_of(result):
    assert result.exit_code == 2
    return {error["key"]: error for error in answer_of(result)["errors"]}


def test_estimate_has_the_keys_of_the_design(meshwright):
    found = answer_of(meshwright("estimate", *JOB, *FITS, "--json"))
    assert list(found) == ESTIMATE_KEYS
    assert list(found["parts"]) == PARTS
    # In the order of the parts the sum is the step; only the last bits may differ.
    assert sum(found["parts"].values()) == pytest.approx(found["step_s"], rel=1e-12)
    assert found["step_s_low"] < found["step_s"] < found["step_s_high"]
    assert found["layout"] == "tp=8 sp pp=4 dp=1x2 zero=1 mb=1" and found["fits"] is True
    assert {"code", "message", "remedy"} == set(answer_of(meshwright("estimate", *JOB, *TOO_LARGE, "--json"))["warnings"][0])


@pytest.mark.parametrize("layout", ["tp=8 sp dp=1x8 zero=3", "pp=8:interleaved*2 dp=1x8 recompute=full", "tp=8 sp cp=2:ring dp=1x4"])
def test_parts_sum_to_the_step(meshwright, layout):
    found = answer_of(meshwright("estimate", *JOB, "--layout", layout, "--json"))
    assert sum(found["parts"].values()) == pytest.approx(found["step_s"], rel=1e-12)
    assert all(seconds >= 0 for seconds in found["parts"].values())
    assert 0 <= found["bubble_fraction"] < 1


def test_what_was_assumed_is_told(meshwright):
    found = answer_of(meshwright("estimate", "llama-3.1-8b", "--cluster", "h100-sxm", "--layout", "dp=1x8 zero=3", "--json"))
    assert any("--batch" in words for words in found["assumed"]) and any("--seq" in words for words in found["assumed"])


@pytest.mark.parametrize(
    ("command", "layout", "code"),
    [
        ("estimate", FITS, 0), ("estimate", TOO_LARGE, 1), ("estimate", [*FITS, *TOO_LARGE], 0), ("estimate", [*TOO_LARGE, *TOO_LARGE], 1),
        ("memory", FITS, 0), ("memory", TOO_LARGE, 1), ("explain", TOO_LARGE, 0), ("ranks", TOO_LARGE, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
def test_exit_codes(meshwright, command, layout, code, as_json):
    """1 where nothing fits, from estimate and memory; explain and ranks only warn."""
    result = meshwright(command, *JOB, *layout, *as_json)
    assert result.exit_code == code
    assert result.stdout
    if as_json:
        answer_of(result)
    told = "does not fit" in result.stderr
    assert told == (command in ("explain", "ranks"))


def test_several_layouts_are_one_comparison(meshwright):
    found = answer_of(meshwright("estimate", *JOB, *FITS, *TOO_LARGE, "--json"))
    assert list(found) == ["estimates", "best", "differences"]
    assert [list(one) for one in found["estimates"]] == [ESTIMATE_KEYS] * 2
    (difference,) = found["differences"]
    assert (found["best"], difference["layout"], difference["against"]) == (0, 1, 0)
    assert difference["step_s"] == pytest.approx(found["estimates"][1]["step_s"] - found["estimates"][0]["step_s"], abs=1e-12)
    assert list(difference["parts"]) == PARTS and difference["words"]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_mfu_says_its_convention(meshwright, convention):
    found = answer_of(meshwright("estimate", *JOB, *FITS, "--mfu-convention", convention, "--json"))
    assert found["mfu_convention"] == convention
    assert convention in meshwright("estimate", *JOB, *FITS, "--mfu-convention", convention).stdout


def test_the_conventions_are_those_of_the_library():
    assert MFU_CONVENTIONS == CONVENTIONS


def test_explain_has_the_keys_of_the_design(meshwright):
    found = answer_of(meshwright("explain", *JOB, *FITS, "--json"))
    assert list(found) == ["rows"]
    assert {tuple(row) for row in found["rows"]} == {tuple(ROW_KEYS)}
    compute = [row for row in found["rows"] if row["op"] is None]
    assert compute and all(row["axis"] is None and row["tier"] is None and row["payload_bytes"] == 0 for row in compute)
    assert {row["phase"] for row in found["rows"]} <= set(PHASES)


def test_explain_filters(meshwright):
    every = answer_of(meshwright("explain", *JOB, *FITS, "--layer", "25", "--json"))["rows"]
    assert {row["layer"] for row in every} == {25}
    some = answer_of(meshwright("explain", *JOB, *FITS, "--layer", "25", "--phase", "backward_weight", "--json"))["rows"]
    assert some == [row for row in every if row["phase"] == "backward_weight"]
    (one,) = answer_of(meshwright("explain", *JOB, *FITS, "--layer", "25", "--row", "3", "--json"))["rows"]
    facts = one.pop("facts")
    assert one == every[2]
    assert {"phase", "time", "calls", "because"} <= set(facts)
    last = answer_of(meshwright("explain", *JOB, *FITS, "--rank", "63", "--json"))["rows"]
    assert "head" in {row["name"] for row in last} and "embedding" not in {row["name"] for row in last}


def test_a_collective_in_full_says_its_group_and_formula(meshwright):
    text = meshwright("explain", *JOB, *FITS, "--layer", "25", "--rank", "17", "--row", "2").stdout
    assert "8 ranks, 16-23; spans nvlink, 450 GB/s per direction and GPU" in text
    assert "M = 134,217,728 bytes = 134 MB" in text
    assert "117,440,512 bytes = 117 MB, n = 8, by (n-1)/n M" in text


@pytest.mark.parametrize("layout", ["tp=8 sp pp=4 zero=1 mb=1", "tp=2 cp=4:ring dp=1x8", "tp=4 sp cp=4:allgather dp=1x4 zero=3"])
def test_every_row_can_be_told_in_full(meshwright, layout):
    """Each count has a formula: no docstring that a formula is taken from has lost its line."""
    rows = answer_of(meshwright("explain", *JOB, "--layout", layout, "--json"))["rows"]
    for number, row in enumerate(rows, 1):
        (told,) = answer_of(meshwright("explain", *JOB, "--layout", layout, "--row", str(number), "--json"))["rows"]
        facts = told["facts"]
        assert not [name for name, text in facts.items() if not text or text.endswith(("by ", ", by"))]
        if row["op"]:
            assert {"group", "payload", "on the wire", "time"} <= set(facts)
        elif row["flops"]:
            assert {"flops", "rate", "memory traffic", "time"} <= set(facts)


def test_by_axis_has_a_line_for_each_axis(meshwright):
    found = answer_of(meshwright("explain", *JOB, *FITS, "--by", "axis", "--json"))
    assert list(found) == ["axes", "host_s"]
    assert [line["axis"] for line in found["axes"]] == ["dp", "tp", "sp", "cp", "ep", "pp", "vocab", "other"]
    keys = {"axis", "degree", "cuts", "collectives", "calls", "payload_bytes", "wire_bytes", "tier", "exposed_s"}
    assert all(set(line) == keys for line in found["axes"])


def test_without_a_layout_by_axis_is_in_letters(meshwright):
    found = answer_of(meshwright("explain", "llama-3.1-70b", "--by", "axis", "--json"))
    assert list(found) == ["axes", "letters"]
    assert found["letters"]["D"] == 8192
    tp = next(line for line in found["axes"] if line["axis"] == "tp")
    assert tp["collectives"] == [
        {
            "op": "all_reduce",
            "axis": "tp",
            "ranks": "tp",
            "calls": "4 m L/pp",
            "payload_bytes": "8 m T D L/pp",
            "wire_per_payload": "2 (n-1)/n",
        }
    ]


def test_memory_has_the_keys_of_the_design(meshwright):
    found = answer_of(meshwright("memory", *JOB, *FITS, "--json"))
    assert list(found) == ["stages"]
    assert [list(stage) for stage in found["stages"]] == [["stage", "categories", "peak_bytes", "held_by"]] * 4
    peaks = [stage["peak_bytes"] for stage in found["stages"]]
    assert max(peaks) == answer_of(meshwright("estimate", *JOB, *FITS, "--json"))["memory_bytes"]


def test_memory_says_what_would_fit(meshwright):
    text = " ".join(meshwright("memory", *JOB, *TOO_LARGE).stdout.split())
    assert "Does not fit: " in text and "It would fit with recompute=full (" in text


def test_ranks_has_the_keys_of_the_design(meshwright):
    found = answer_of(meshwright("ranks", "llama-3.1-70b", "--cluster", "h100-sxm", "--layout", "tp=8 dp=1x2 pp=4", "--json"))
    assert list(found) == ["axes", "tiers", "warnings"]
    # The worked case: strides tp 1, dp 8, pp 16.
    assert [found["axes"][axis][0] for axis in ("tp", "dp", "pp")] == [list(range(8)), [0, 8], [0, 16, 32, 48]]
    assert found["tiers"]["tp"] == "nvlink" and found["tiers"]["pp"] != "nvlink"


def test_a_saved_plan_gives_the_same_answers(meshwright, tmp_path):
    from jobs import job
    from meshwright.spec.plan_file import Plan, save_plan

    asked = job("llama-3.1-70b", FITS[1], gpus=64)
    path = str(tmp_path / "plan.toml")
    save_plan(Plan(model=asked.model, cluster=asked.cluster, workload=asked.workload, layout=asked.layout), tmp_path / "plan.toml")
    for command in ("estimate", "explain", "memory", "ranks"):
        saved, said = meshwright(command, path, "--json"), meshwright(command, *JOB, *FITS, "--json")
        assert (saved.exit_code, saved.stdout) == (said.exit_code, said.stdout)
    assert meshwright("explain", path, "--by", "axis").stdout == meshwright("explain", *JOB, *FITS, "--by", "axis").stdout


def test_warnings_go_to_stderr_with_their_remedy(meshwright):
    result = meshwright("explain", *JOB, "--layout", "tp=16 sp dp=1x4 mb=1")
    assert result.stderr.startswith("warning: ") and "\n  hint: " in result.stderr
    assert "warning" not in result.stdout


def test_a_stack_that_cannot_express_the_layout_warns(meshwright):
    result = meshwright("estimate", *JOB, "--layout", "tp=8 sp dp=1x8 zero=3", "--stack", "deepspeed", "--json")
    codes = [warning["code"] for warning in answer_of(result)["warnings"]]
    assert "stack" in codes
    plain = meshwright("estimate", *JOB, "--layout", "tp=8 sp dp=1x8 zero=3", "--json")
    assert "stack" not in [warning["code"] for warning in answer_of(plain)["warnings"]]


@pytest.mark.parametrize(
    ("args", "keys"),
    [
        (["estimate", "llama-3.1-70b"], {"--cluster", "--layout"}),
        (["memory", *JOB, "--layout", ""], {""}),
        (["memory", *JOB, "--layout", "tp=7 dp=1x1"], {"gpus"}),
        (["estimate", *JOB, "--layout", "tq=8", "--layout", "tp=0"], {"tq", "tp"}),
        (["explain", *JOB, *FITS, "--layer", "80"], {"--layer"}),
        (["explain", *JOB, *FITS, "--layer", "25", "--rank", "0"], {"--layer"}),
        (["explain", *JOB, *FITS, "--rank", "64", "--row", "0"], {"--row"}),
        (["explain", *JOB, *FITS, "--phase", "forwards"], {"--phase"}),
        (["explain", *JOB, *FITS, "--by", "axes"], {"--by"}),
        (["explain", *JOB, *FITS, "--by", "axis", "--layer", "3", "--row", "1"], {"--layer", "--row"}),
        (["explain", *JOB, *FITS, "--row", "100000"], {"--row"}),
        (["explain", "llama-3.1-70b"], {"--cluster", "--layout"}),
        (["ranks", "no-such-model", "--cluster", "no-such-cluster", "--layout", "tp=x"], {"model", "--cluster", "tp"}),
        (["estimate", "absent/config.json", "--cluster", "h100-sxm", "--layout", "dp=1x8"], {""}),
        (["estimate", "plan.toml"], {""}),
        (["estimate", *JOB, "--layout", "tp=8 sp dp=1x8", "--mfu-convention", "best", "--memory-fraction", "1.5"],
         {"--mfu-convention", "--memory-fraction"}),
    ],
)  # fmt: skip
def test_wrong_input_is_told_with_what_would_be_legal(meshwright, args, keys):
    found = errors_of(meshwright(*args, "--json"))
    assert set(found) == keys
    assert all(error["legal"] for error in found.values())
    assert meshwright(*args).stderr.startswith("error: ")


def test_twelve_layers_on_64_stages_are_refused(meshwright, tmp_path):
    config = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    args = ["estimate", str(tmp_path), "--cluster", "h100-sxm", "--layout", "pp=64 dp=1x1", "--seq", "1024", "--batch", "64"]
    assert set(errors_of(meshwright(*args, "--json"))) == {"pp"}
