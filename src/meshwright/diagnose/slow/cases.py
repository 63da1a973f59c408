"""Two forms of a rule's cases: a profile in words, and a table of operations by its sizes.

``profile`` takes spans of each rank, in milliseconds; ``all`` is for ranks that are not listed by their number:

    profile:
      groups: {dp: [0, 1]}
      all:
        - step 0-100
        - loader 0-5
        - forward 5-40                  # a kernel; launched long before, unless it says `launched 4`
        - dp all_reduce 40-50 8MB       # a kernel of a collective; a size if it matters
        - pp send->1 40-41              # one end of a message; the other is `pp recv<-0`
        - kernel my_allreduce 50-60     # a kernel by its name
        - call cudaStreamSynchronize 60-90

``operations`` makes the table of a 1F1B pipeline, ``slow`` being ``{rank: r, times: x}``, ``{stage: s, times: x}`` or
``{link: r, times: x}``, the messages between rank r and the next stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from meshwright.diagnose.slow.operation_graph import OperationGraph, graph_of
from meshwright.recording.communication_kernels import communication_kernel
from meshwright.recording.kineto import read_kineto
from meshwright.recording.operations import Operations
from meshwright.units import parse_bytes

SPAN = re.compile(r"(?P<what>.+?) (?P<start>[\d.]+)-(?P<end>[\d.]+)(?: launched (?P<launched>[\d.]+))?(?: (?P<size>\d+[kMG]?i?B))?")
ANNOTATIONS = {"step": "ProfilerStep#{n}", "loader": "enumerate(DataLoader)#_Iter.__next__"}
PHASES = {"forward": ("aten::linear", 1), "backward": ("autograd::engine::evaluate_function: Mm", 2), "optimizer": ("aten::add_", 1)}
"""The operator that launches it, and on which thread."""


def profile(value: Mapping[Any, Any]) -> Iterable[object]:
    """A Trace per rank, read from the JSON that Kineto would have written."""
    groups: Mapping[str, list[int]] = value.get("groups", {})
    ranks = sorted({rank for members in groups.values() for rank in members} | {rank for rank in value if isinstance(rank, int)})
    for rank in ranks:
        yield trace_of(rank, value.get("world", len(ranks)), groups, value.get(rank, value.get("all", ())))


def trace_of(rank: int, world_size: int, groups: Mapping[str, list[int]], spans: Iterable[str]) -> object:
    import io
    import json

    events: list[dict[str, Any]] = []
    for number, text in enumerate(spans):
        match = SPAN.fullmatch(text)
        assert match is not None, text
        if rank in groups.get(match["what"].partition(" ")[0], (rank,)):  # of `all`, a rank does only what its own groups do
            events += _events(number, match, groups)
    body = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": world_size}, "traceEvents": events}
    return read_kineto(io.BytesIO(json.dumps(body).encode()), f"rank {rank}")


def _events(number: int, match: re.Match[str], groups: Mapping[str, list[int]]) -> list[dict[str, Any]]:
    what, start, end = match["what"], float(match["start"]) * 1e3, float(match["end"]) * 1e3
    head, _, rest = what.partition(" ")
    launched = float(match["launched"]) * 1e3 if match["launched"] else 0.0
    if head in ANNOTATIONS:
        return [_event("user_annotation", ANNOTATIONS[head].format(n=number), start, end, tid=1)]
    if head == "call":
        return [_event("cuda_runtime", rest, start, end, tid=1)]
    args: dict[str, Any] = {"stream": 7, "correlation": number + 1}
    operator, thread, name = "aten::linear", 1, rest
    if head in PHASES:
        (operator, thread), name = PHASES[head], f"{head}_kernel"
    elif head in groups:
        op, _, peer = rest.replace("->", " ").replace("<-", " ").partition(" ")
        name = f"ncclDevKernel_{'SendRecv' if peer else op}"
        args |= {"stream": 20, "Collective name": op, "Process Group Name": head, "Process Group Ranks": str(groups[head])}
        if peer:
            args |= {"Dst Rank" if op == "send" else "Src Rank": groups[head].index(int(peer))}
        args |= {"dtype": "Byte", "In msg nelems": parse_bytes(match["size"]) if match["size"] else 0}
    elif communication_kernel(name) is not None:
        args["stream"] = 20
    return [
        _event("kernel", name, start, end, tid=args["stream"], args=args),
        _event("cpu_op", operator, launched, launched + 1, tid=thread),
        _event("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, tid=thread, args={"correlation": number + 1}),
    ]


def _event(category: str, name: str, start_us: float, end_us: float, tid: int, args: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start_us, "dur": end_us - start_us, "args": args or {}}


def operations(value: Mapping[str, Any]) -> Iterable[OperationGraph]:
    """The graph of a table that a 1F1B pipeline would have left."""
    yield graph_of(table_of(**value))


def table_of(
    stages: int, data_ranks: int, micro_batches: int, steps: int, forward: float, backward: float, transfer: float = 0.0,
    slow: Mapping[str, Any] | None = None,
) -> Operations:  # fmt: skip
    import numpy as np

    from meshwright.schedule import build
    from meshwright.timeline import simulate, uniform_costs

    schedule = build("1f1b", stages, 1, micro_batches)
    kinds = ("forward-compute", "backward-compute", "forward-send", "forward-recv", "backward-send", "backward-recv")
    rows: list[tuple[int, int, int, int, int, float, float]] = []
    for data_rank in range(data_ranks):
        times, link = _times(stages, data_rank, data_ranks, slow or {})
        costs = uniform_costs(schedule, forward * times, backward / 2 * times, backward / 2 * times, transfer * link)
        done = _spans(simulate(schedule, costs), stages)
        for step in range(steps):
            rows += [(data_rank, stage, step, sequence, kind, *span) for kind, stage, sequence, span in _rows(done, stages)]
    columns = list(zip(*rows, strict=True))
    whole = [np.array(column, dtype=np.int64) for column in columns[:5]]
    return Operations(
        path="made up", data_rank=whole[0], stage=whole[1], step=whole[2], sequence=whole[3], kind=whole[4], kinds=kinds, chunk=whole[1],
        start_s=np.array(columns[5]), end_s=np.array(columns[6]),
        rank={(data_rank, stage): stage * data_ranks + data_rank for data_rank in range(data_ranks) for stage in range(stages)},
    )  # fmt: skip


def _times(stages: int, data_rank: int, data_ranks: int, slow: Mapping[str, Any]) -> tuple[Any, Any]:
    """By stage, the factors of this data rank's computations, and of the messages behind the stage."""
    import numpy as np

    times, link = np.ones(stages), np.ones(stages)
    for stage in range(stages):
        mine = stage * data_ranks + data_rank
        if slow.get("rank") == mine or slow.get("stage") == stage:
            times[stage] = slow["times"]
        if slow.get("link") == mine:
            link[stage] = slow["times"]
    return times, link


Spans = dict[tuple[int, int], list[tuple[float, float, float]]]


def _spans(played: Any, stages: int) -> Spans:
    """(kind, stage) -> (start, end, arrival of the input) in order: kind 0 is forward, 1 backward."""
    found: Spans = {(kind, stage): [] for kind in (0, 1) for stage in range(stages)}
    for event, arrival in zip(played, played.arrival_s.tolist(), strict=True):
        found[int(event.kind != 0), event.rank].append((event.start_s, event.end_s, arrival))
    return {key: sorted(spans) for key, spans in found.items()}


def _rows(done: Spans, stages: int) -> Iterable[tuple[int, int, int, tuple[float, float]]]:
    """(kind, stage, sequence, span): the computations, and messages that leave when they are done and are awaited from the last moment on
    at which the receiver was busy."""
    for (kind, stage), spans in done.items():
        there = stage + (1 if kind == 0 else -1)
        for sequence, (start, end, _) in enumerate(spans):
            yield kind, stage, sequence, (start, end)
            if 0 <= there < stages:
                needed, _, arrival = done[kind, there][sequence]
                busy = max((each for other in (0, 1) for _, each, _ in done[other, there] if each <= needed), default=0.0)
                yield 2 + 2 * kind, stage, sequence, (end, arrival)
                yield 3 + 2 * kind, there, sequence, (min(busy, arrival), arrival)
