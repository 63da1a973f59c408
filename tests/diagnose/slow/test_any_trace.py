"""Whatever a trace holds, it is judged and drawn without an exception."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.judge import judge
from meshwright.diagnose.slow.summary import step_json
from meshwright.recording.json_events import BadTrace
from meshwright.recording.kineto import read_kineto
from meshwright.render.diagnose import diagnosis_text
from meshwright.render.diagnose_html import diagnosis_html

NAMES = st.sampled_from(
    (
        "k ncclDevKernel_AllReduce_Sum(x) ncclDevKernel_SendRecv(x) gloo:all_reduce nccl:send|0->1 ProfilerStep#1 ProfilerStep#2 "
        "enumerate(DataLoader)#x Optimizer.step#x MmBackward0 record_param_comms acme_all_gather launch"
    )
    .replace(" ", "\n").replace("|", " ").split("\n")
)  # fmt: skip
KINDS = st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", "cpu_op", "python_function", "Kernel", "Operator"])
MOMENTS = st.one_of(st.integers(0, 50), st.floats(0, 50), st.sampled_from([-5, 0, 1e16, "x", None]))
ARGS = {
    "stream": [1, 2, "x", None],
    "correlation": [0, 1, 2, -1, "x", None],
    "Collective name": ["allreduce", "send", "recv", "wait", "odd", 3],
    "Process Group Name": ["a", "b", 0, None],
    "Process Group Ranks": ["[0, 1]", "[1, 0, 5]", "[]", "[0, ...]", [0, "x"], None],
    "Seq": [0, 1, "2", "x"],
    "Dst Rank": [0, 1, 9, -1],
    "Src Rank": [0, 1, 9],
    "In msg nelems": [0, 10, -3, "x"],
    "dtype": ["Float", "odd", 1],
    "Input Dims": [[], [[2, 3]], [["x"]], 1],
}
SOME_ARGS = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in ARGS.items()})
EVENTS = st.fixed_dictionaries(
    {"ph": st.just("X"), "name": NAMES, "cat": KINDS, "ts": MOMENTS, "dur": MOMENTS},
    optional={"args": st.one_of(SOME_ARGS, st.none()), "tid": st.integers(1, 2)},
)
INFO = st.fixed_dictionaries({}, optional={"rank": st.sampled_from([0, 1, 7, "x"]), "world_size": st.sampled_from([1, 2, 8, "x"])})


@settings(max_examples=150)
@given(st.lists(st.tuples(st.lists(EVENTS, max_size=12), INFO), min_size=1, max_size=3))
def test_any_traces_are_judged_and_drawn(files: list[tuple[list[dict[str, Any]], dict[str, Any]]]) -> None:
    pieces = []
    for events, info in files:
        try:
            pieces.append(read_kineto(io.BytesIO(json.dumps({"traceEvents": events, "distributedInfo": info}).encode()), "t"))
        except BadTrace:
            continue
    evidence = Evidence(pieces=tuple(pieces))
    diagnosis = judge(evidence)
    json.dumps(diagnosis.as_json() | step_json(evidence), allow_nan=False)
    assert diagnosis_text(diagnosis, evidence) and diagnosis_html(diagnosis, evidence).endswith("</html>\n")
