"""What is read from a Kineto trace: both generations of the format, calls of process groups from wherever the profiler tells them, and
traces that are damaged or empty."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from meshwright.recording.json_events import BadTrace
from meshwright.recording.kineto import read_kineto
from meshwright.recording.trace import Call, Trace


def span(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1} | more


def trace(events: list[dict[str, Any]] | str, path: str = "t.json", **header: Any) -> Trace:
    body = events if isinstance(events, str) else json.dumps({"traceEvents": events} | header)
    return read_kineto(io.BytesIO(body.encode()), path)


NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
METADATA = {
    "Collective name": "_allgather_base", "In msg nelems": 1024, "Out msg nelems": 8192, "Group size": 8, "dtype": "BFloat16",
    "Process Group Name": "3", "Process Group Description": "mesh_tp", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Seq": 41,
}  # fmt: skip


def test_a_kernels_own_metadata_says_what_it_is_for() -> None:
    (found,) = trace([span("kernel", NCCL, 10, 5, args={"stream": 20, "correlation": 7} | METADATA)]).communications
    assert found.call == Call(op="all_gather", group="mesh_tp (3)", ranks=tuple(range(8)), seq=41, payload_bytes=8192 * 2, dtype="bf16")
    assert (found.stream, found.library, found.known, found.duration_s) == ("stream 20", "NCCL", True, pytest.approx(5e-6))


def test_metadata_of_the_call_on_the_host_is_found_by_the_launch() -> None:
    found = trace([
        span("cpu_op", "record_param_comms", 0, 10, args=METADATA), span("cpu_op", "record_param_comms", 50, 10, args={}),
        span("cuda_runtime", "cudaLaunchKernelExC", 4, 2, args={"correlation": 7}),
        span("kernel", NCCL, 30, 5, args={"stream": 20, "correlation": 7}),
    ]).communications[0]  # fmt: skip
    assert (found.call.seq, found.call.group, found.launched_s) == (41, "mesh_tp (3)", pytest.approx(4e-6))


def test_an_older_trace_has_the_annotation_and_the_shape() -> None:
    found = trace([
        span("user_annotation", "nccl:all_to_all", 0, 10, args={"Input Dims": [[64, 3]], "Input type": ["c10::BFloat16"]}),
        span("cuda_runtime", "cudaLaunchKernel", 4, 2, args={"correlation": 7}),
        span("kernel", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWork*)", 30, 5, args={"stream": 20, "correlation": 7}),
    ]).communications[0]  # fmt: skip
    assert found.call == Call(op="all_to_all", payload_bytes=384, dtype="bf16") and found.op == "send_recv"


def test_a_kernel_of_any_name_communicates_if_the_profiler_says_so() -> None:
    (found,) = trace([span("kernel", "mystery", 10, 5, args={"stream": 1} | METADATA)]).communications
    assert found.call.op == "all_gather"


def test_ends_of_messages_are_global_ranks() -> None:
    metadata = METADATA | {"Collective name": "send", "Process Group Ranks": "[4, 12]", "Dst Rank": 1}
    (found,) = trace([span("kernel", "ncclDevKernel_SendRecv(x)", 10, 5, args=metadata)]).communications
    assert (found.call.op, found.call.peer) == ("send", 12)


def test_group_ranks_cut_short_are_taken_from_the_header() -> None:
    metadata = METADATA | {"Process Group Ranks": "[0, 1, ...]"}
    info = {"rank": 1, "world_size": 4, "pg_config": [{"pg_name": "3", "pg_desc": "mesh_tp", "ranks": [0, 1, 2, 3]}]}
    found = trace([span("kernel", NCCL, 10, 5, args=metadata)], distributedInfo=info)
    assert found.communications[0].call.ranks == (0, 1, 2, 3)
    assert (found.rank, found.rank_told, found.world_size) == (1, True, 4)


@pytest.mark.parametrize(
    ("path", "rank", "told"),
    [
        ("a/rank-3.json.gz", 3, True), ("worker12_step_4.1694.pt.trace.json", 12, True), ("rank_07/trace.json", 0, False),
        ("host_123.1694.pt.trace.json", 0, False), ("x.tar.gz:run/rank5.json", 5, True),
    ],
)  # fmt: skip
def test_the_files_name_says_the_rank_where_the_trace_does_not(path: str, rank: int, told: bool) -> None:
    found = trace([span("kernel", "k", 1, 1)], path)
    assert (found.rank, found.rank_told) == (rank, told)


def test_the_list_form_is_the_same_trace() -> None:
    old = [
        span("Kernel", "gemm", 5, 10, tid="stream 7", args={"stream": 7, "correlation": 3}),
        span("Runtime", "cudaLaunchKernel", 1, 1, args={"correlation": 3}),
        span("Operator", "ProfilerStep#5", 0, 30),
        span("Operator", "aten::linear", 0, 4),
        span("Memcpy", "Memcpy HtoD", 2, 1, args={"stream": 7}),
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "f", "id": 3, "ts": 5, "cat": "async", "name": "launch"},
    ]
    found = trace(json.dumps(old))
    assert (len(found.compute), len(found.launches), len(found.annotations), len(found.operators)) == (2, 1, 1, 1)
    assert found.annotations.names == ("ProfilerStep#5",)


def test_base_time_is_added_to_the_origin_and_keeps_microseconds() -> None:
    found = trace(
        [span("kernel", "k", 4909914216204.635, 1), span("kernel", "k", 4909914216304.885, 1)], baseTimeNanoseconds=1775078550000000000
    )
    assert found.origin_s == pytest.approx(1775078550 + 4909914.216204635)
    assert found.compute.start_s[1] == pytest.approx(100.25e-6, abs=1e-9)


@pytest.mark.parametrize(
    "odd",
    [
        {"ts": "soon"}, {"ts": None}, {"dur": "long"}, {"ts": float("nan")}, {"ts": 1e300}, {"name": 7}, {"cat": ["kernel"]}, {"ph": 3},
    ],
    ids=str,
)  # fmt: skip
def test_events_with_odd_values_are_left_out(odd: dict[str, Any]) -> None:
    assert len(trace([span("kernel", "k", 1, 1), span("kernel", "k", 2, 1) | odd]).compute) == 1


@pytest.mark.parametrize(
    "args", [None, [], "x", {"correlation": "seven", "stream": [1]}, {"correlation": 1 << 80}, {"Collective name": 5}], ids=str
)
def test_odd_arguments_do_no_harm(args: Any) -> None:
    assert len(trace([span("kernel", "k", 1, 1, args=args)]).compute) == 1


def test_negative_durations_count_as_nothing() -> None:
    assert trace([span("kernel", "k", 5, -3)]).compute.duration_s.tolist() == [0.0]


@pytest.mark.parametrize("events", [[], [{"ph": "i", "ts": 1, "name": "x"}]])
def test_a_trace_without_spans_is_refused(events: list[dict[str, Any]]) -> None:
    with pytest.raises(BadTrace, match="no span"):
        trace(events)


def test_a_torn_trace_says_so() -> None:
    text = json.dumps({"traceEvents": [span("kernel", "k", place, 1) for place in range(50)]})
    found = trace(text[: len(text) // 2])
    assert 20 < len(found.compute) < 30 and found.notes == ("ends in the middle; what came before was used",)


@pytest.mark.parametrize(
    "header",
    [{"distributedInfo": 5}, {"deviceProperties": "x"}, {"distributedInfo": {"rank": "0", "pg_config": 3}}, {"baseTimeNanoseconds": "x"}],
    ids=str,
)
def test_odd_headers_do_no_harm(header: dict[str, Any]) -> None:
    assert len(trace([span("kernel", "k", 1, 1)], **header).compute) == 1
