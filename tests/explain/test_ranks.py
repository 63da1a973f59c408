"""The content of ``meshwright ranks``: groups per axis, tiers, warnings, and the picture of the nodes."""

import json

import pytest

from meshwright.explain.ranks import PICTURE_WIDTH, explain_ranks
from meshwright.spec.layout import parse_layout
from meshwright.spec.rules import check
from meshwright.spec.workload import Training
from sample_inputs import GPT2_XL, H100_CLUSTER, LLAMA_70B, QWEN_MOE


def report(text, model=LLAMA_70B):
    return explain_ranks(model, parse_layout(text), H100_CLUSTER)


def test_worked_case_of_64_ranks():
    """tp=8 dp=2 pp=4: tensor groups fill the nodes, data and pipeline groups cross them."""
    found = report("tp=8 dp=2 pp=4").as_json()
    assert found["tiers"] == {"tp": "nvlink", "dp_shard": "infiniband", "dp": "infiniband", "pp": "infiniband"}
    axes = found["axes"]
    assert axes["tp"][0] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert axes["dp"][0] == [0, 8]
    assert axes["pp"][0] == [0, 16, 32, 48]
    for groups in axes.values():
        assert sorted(rank for group in groups for rank in group) == list(range(64))


def test_json_has_the_stable_keys_and_all_groups_of_a_large_world():
    found = json.loads(json.dumps(report("tp=8 sp pp=16 dp=2x256").as_json()))
    assert set(found) == {"axes", "tiers", "warnings"}
    assert set(found["axes"]) == set(found["tiers"]) == {"tp", "dp_shard", "dp_replicate", "dp", "pp"}
    assert len(found["axes"]["tp"]) == 8192
    assert len(found["axes"]["dp"]) == 128


def test_warnings_are_those_of_the_rules():
    layout = parse_layout("tp=16 sp")
    warnings = check(LLAMA_70B, Training(seq=8192, batch=512), layout, H100_CLUSTER)
    found = explain_ranks(LLAMA_70B, layout, H100_CLUSTER, warnings).as_json()
    assert [warning["code"] for warning in found["warnings"]] == ["tp-across-nodes", "kv-copies"]


@pytest.mark.parametrize(
    ("text", "model", "axes"),
    [
        ("tp=1 dp=1", LLAMA_70B, set()),
        ("tp=16 sp", LLAMA_70B, {"tp", "kv"}),
        ("tp=2 cp=4:usp=2x2 dp=4 zero=1", LLAMA_70B, {"tp", "cp", "ulysses", "ring", "dp_shard", "dp", "fsdp", "dp_cp"}),
        ("tp=2 sp etp=1 dp=8 ep=8", QWEN_MOE, {"tp", "dp_shard", "dp", "ep", "edp"}),
        ("tp=2 dp=8 ep=4", QWEN_MOE, {"tp", "dp_shard", "dp", "ep", "etp", "edp"}),
        ("pp=4", GPT2_XL, {"pp", "embedding"}),
        ("pp=4:zb-v", GPT2_XL, {"pp"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_axes_in_use_are_reported(text, model, axes):
    assert set(report(text, model).as_json()["axes"]) == axes


def test_tied_embedding_is_shared_by_the_first_and_last_stage():
    found = report("tp=2 pp=4 dp=2", GPT2_XL).as_json()
    assert found["axes"]["embedding"] == [[0, 12], [1, 13], [2, 14], [3, 15]]
    assert found["tiers"]["embedding"] == found["tiers"]["pp"]


def test_rows_say_the_pattern_and_the_first_groups():
    rows = {row[0]: row for row in report("tp=2 cp=2 dp=4x2 pp=2 order=tp-dp-cp-ep-pp zero=1").rows()}
    assert rows["tp"][1:5] == (2, "nvlink", "2 at stride 1", "[0 1] [2 3] [4 5] [6 7] ... 32 groups")
    assert rows["fsdp"][3] == "2 at stride 2, then 2 at stride 16"
    assert rows["fsdp"][4].startswith("[0 2 16 18] [1 3 17 19]")
    assert rows["dp"][1] == 8


def test_rows_leave_out_dp_where_it_is_one_of_its_parts():
    assert [row[0] for row in report("tp=8 dp=2 pp=4").rows()] == ["tp", "dp_shard", "pp"]


def test_long_groups_are_cut_in_the_middle():
    rows = {row[0]: row for row in report("dp=64").rows()}
    assert rows["dp_shard"][4] == "[0 1 2 3 4 5 6 ... 63]"


def test_picture_has_a_line_for_each_node_and_a_cell_for_each_gpu():
    found = report("tp=4 dp=2 pp=2")
    lines = found.picture()
    assert [line.split()[:2] for line in lines] == [["node", "0"], ["node", "1"]]
    assert [cell.strip() for cell in lines[1].removeprefix("node 1").split("|")][:5] == [
        " 8 t0 s0 p1".strip(), " 9 t1 s0 p1".strip(), "10 t2 s0 p1", "11 t3 s0 p1", "12 t0 s1 p1",
    ]  # fmt: skip
    assert found.legend() == "rank, then its place: t = tp, s = dp_shard, p = pp"
    assert report("dp=256").picture() == []


def test_a_long_picture_takes_several_lines_per_node():
    lines = report("tp=2 cp=2 dp=2x2 pp=4").picture()
    assert max(map(len, lines)) <= PICTURE_WIDTH
    cells = [cell.split()[0] for line in lines for cell in line.removeprefix(line[: line.index("  ")]).split(" | ")]
    assert [int(cell) for cell in cells] == list(range(64))
    assert [line[:6] for line in lines if line.startswith("node")] == [f"node {node}" for node in range(8)]
