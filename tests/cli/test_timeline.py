"""``timeline`` on the command line and in Python: text, keys, files, bad input."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

import meshwright as mw

JOB = ["llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "64", "--seq", "4096", "--batch", "32"]
PIPELINE = ["--layout", "tp=8 sp pp=4 dp=1x2 zero=1 mb=1"]
SHARDED = ["--layout", "tp=8 sp dp=1x8 zero=3 mb=1"]
CAUSES = {"upstream", "downstream", "transfer", "sending", "start", "gradients", "end"}


def test_keys_of_the_design(meshwright):
    found = json.loads(meshwright("timeline", *JOB, *PIPELINE, "--slow", "stage=2 x1.3", "--json").stdout)
    assert {"step_s", "bubble_fraction", "ranks", "critical_path", "culprit"} <= set(found)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2, 3]
    assert all(set(rank["waiting_s"]) == CAUSES for rank in found["ranks"])
    assert [rank["in_flight"] for rank in found["ranks"]] == [4, 3, 2, 1]
    assert set(found["critical_path"][0]) == {"what", "rank", "chunk", "micro_batch", "start_s", "end_s"}


def test_a_slow_stage_is_named_and_its_price_told(meshwright):
    """It waits least; the others' waiting is what it added; the loss is that against the healthy step."""
    healthy = json.loads(meshwright("timeline", *JOB, *PIPELINE, "--json").stdout)
    slow = json.loads(meshwright("timeline", *JOB, *PIPELINE, "--slow", "stage=2 x1.3", "--json").stdout)
    assert slow["culprit"] == 2 and slow["healthy_step_s"] == healthy["step_s"] < slow["step_s"]
    waited = [sum(rank["waiting_s"].values()) for rank in slow["ranks"]]
    assert min(range(4), key=lambda rank: waited[rank]) == 2
    text = meshwright("timeline", *JOB, *PIPELINE, "--slow", "stage=2 x1.3").stdout
    assert "rank 2, for which the others wait" in text
    assert f"{slow['step_s'] / healthy['step_s']:.3f} times the healthy" in text


def test_pieces_of_the_critical_path_that_print_as_nothing_are_left_out(meshwright):
    job = mw.timeline("llama-3.1-70b", cluster="h100-sxm", gpus=64, seq=4096, batch=32, layout=SHARDED[1])
    assert min(share for _, share in job.shares_of_critical_path()) < 5e-4  # the norm of the gradients
    told = meshwright("timeline", *JOB, *SHARDED).stdout.split("critical path", 1)[1].split("\n\n")[0]
    assert "compute of rank 0 9" in told and " 0.0%" not in told


@pytest.mark.parametrize(("slow", "hit"), [("rank=1 x2", 1), ("op=backward rank=3 x1.5", 3)])
def test_ranks_and_ops_may_be_slow(slow, hit):
    found = mw.timeline(JOB[0], cluster="h100-sxm", gpus=64, seq=4096, batch=32, layout=PIPELINE[1], slow=slow)
    assert found.culprit == hit and found.step_s > found.healthy.step_s


def test_a_slow_link_is_waited_for_as_messages():
    found = mw.timeline(JOB[0], cluster="h100-sxm", gpus=64, seq=4096, batch=32, layout=PIPELINE[1], slow="link=1-2 x50")
    added = found.step.waiting_s["sending"]
    usual = found.healthy.waiting_s["sending"]
    assert added[1] > 10 * usual[1] > 0 and added[3] == pytest.approx(usual[3])


def test_several_things_may_be_slow(meshwright):
    both = json.loads(meshwright("timeline", *JOB, *PIPELINE, "--slow", "stage=2 x1.3", "--slow", "op=forward x1.1", "--json").stdout)
    one = json.loads(meshwright("timeline", *JOB, *PIPELINE, "--slow", "stage=2 x1.3", "--json").stdout)
    assert both["step_s"] > one["step_s"] and both["slow"] == ["stage=2 x1.3", "op=forward x1.1"]


def test_files_for_perfetto_and_the_picture(meshwright, tmp_path):
    trace, picture = tmp_path / "trace.json", tmp_path / "grid.svg"
    result = meshwright("timeline", *JOB, *PIPELINE, "-o", str(trace), "--svg", str(picture))
    assert result.exit_code == 0 and f"wrote {trace}" in result.stderr
    events = json.loads(trace.read_text())["traceEvents"]
    answer = json.loads(meshwright("timeline", *JOB, *PIPELINE, "--json").stdout)
    lanes = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert {(rank, "collectives (dp)") for rank in range(4)} <= lanes
    spans = [e for e in events if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(1e6 * answer["step_s"], rel=1e-9)
    assert sum(e["name"].startswith("reduce ") for e in spans) == 80 + 2
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")


def test_sharded_layers_are_drawn_in_lanes(meshwright, tmp_path):
    text = meshwright("timeline", *JOB, *SHARDED).stdout
    for title in ("Forward of layers in the middle", "Backward of layers in the middle"):
        part = text.split(title)[1].split("\n\n")[1].splitlines()
        lanes = [line.split()[0] for line in part]
        assert lanes == (["gather", "compute"] if title.startswith("F") else ["gather", "compute", "scatter"])
        assert "layer 41" in part[1] or "41" in part[1]
    assert " ".join(text.split()).count("tokens of a micro-batch on a rank (here 4,096)") == 2
    trace = tmp_path / "trace.json"
    meshwright("timeline", *JOB, *SHARDED, "-o", str(trace))
    names = [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert sum(name.startswith("gather layer") for name in names) == 160 and sum(name.startswith("scatter layer") for name in names) == 80


@pytest.mark.parametrize(
    ("slow", "key"), [("stage=9 x1.3", "stage"), ("rank=4 x2", "rank"), ("link=0-2 x2", "link"), ("stage=1", ""), ("stag=1 x2", "stag=1")]
)
def test_what_is_not_there_cannot_be_slow(meshwright, slow, key):
    result = meshwright("timeline", *JOB, *PIPELINE, "--slow", slow, "--json")
    assert result.exit_code == 2
    (error,) = json.loads(result.stdout)["errors"]
    assert error["file"] == "--slow" and error["key"] == key and error["legal"]


def test_a_file_that_cannot_be_written_is_told(meshwright, tmp_path):
    result = meshwright("timeline", *JOB, *PIPELINE, "-o", str(tmp_path / "missing" / "trace.json"), "--json")
    assert result.exit_code == 2 and json.loads(result.stdout)["errors"]
