"""Reads Kineto traces, as torch.profiler writes them, into a Trace; a pass over the events, in columns.

Categories and keys: Kineto's output_json.cpp for today's object form (``kernel``, ``cuda_runtime``, ``cpu_op``, times in
microseconds, ``baseTimeNanoseconds``), and the list of events that torch 1.7 wrote (``Kernel``, ``Runtime``, ``Operator``).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from meshwright.recording.communication_kernels import communication_kernel, op_in_words
from meshwright.recording.json_events import EventStream, Readable
from meshwright.recording.kineto_calls import call_of_annotation, call_of_metadata, groups_of_header, merged
from meshwright.recording.trace import Call, Communication, Spans, Trace

__all__ = ["read_kineto"]

_KINDS = {
    "kernel": "device", "gpu_memcpy": "device", "gpu_memset": "device", "memcpy": "device", "memset": "device",
    "concurrent_kernel": "device", "collective_comm": "device", "mtia_ccp_events": "device",
    "cuda_runtime": "launches", "cuda_driver": "launches", "runtime": "launches", "hip_runtime": "launches", "xpu_runtime": "launches",
    "privateuse1_runtime": "launches", "mtia_runtime": "launches",
    "user_annotation": "annotations", "cpu_op": "operators", "operator": "operators",
}  # fmt: skip
"""Kineto's categories in lower case, and the column they go to. What is not here is left out: Python functions, instants, flows."""

MOST_US = 1e17

_NAMED_BY_PROFILER = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#", "nccl:", "gloo:", "DistributedDataParallel.")
"""Annotations that the list form calls operators."""


class _Columns:
    """Rows as they come; texts become numbers."""

    def __init__(self) -> None:
        self.start_us, self.end_us = array("d"), array("d")
        self.name, self.lane, self.link = array("q"), array("q"), array("q")
        self.names: dict[str, int] = {}
        self.lanes: dict[str, int] = {}

    def add(self, start_us: float, duration_us: float, name: str, lane: str, link: int) -> int:
        row = len(self.start_us)
        self.start_us.append(start_us)
        self.end_us.append(start_us + duration_us)
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.lane.append(self.lanes.setdefault(lane, len(self.lanes)))
        self.link.append(link)
        return row

    def spans(self, origin_us: float) -> tuple[Spans, Any]:
        """In order of start, and the order in which the rows came."""
        import numpy as np

        start = np.frombuffer(self.start_us, dtype=np.float64) if self.start_us else np.zeros(0)
        end = np.frombuffer(self.end_us, dtype=np.float64) if self.end_us else np.zeros(0)
        whole = [np.frombuffer(each, dtype=np.int64) if each else np.zeros(0, dtype=np.int64) for each in (self.name, self.lane, self.link)]
        order = np.lexsort((-end, start))  # what holds another comes first
        name, lane, link = (each[order] for each in whole)
        spans = Spans(
            start_s=(start[order] - origin_us) / 1e6, end_s=(end[order] - origin_us) / 1e6,
            name=name, lane=lane, link=link, names=tuple(self.names), lanes=tuple(self.lanes),
        )  # fmt: skip
        return spans, order


class _Reading:
    """The state of one pass."""

    def __init__(self) -> None:
        self.columns = {kind: _Columns() for kind in ("device", "launches", "annotations", "operators")}
        self.kernel_calls: dict[int, Call] = {}  # by row of `device`
        self.host_calls: list[tuple[float, float, str, Call]] = []  # start_us, end_us, lane, call
        self.kinds: dict[str, str | None] = {}

    def take(self, events: Iterable[dict[str, Any]]) -> None:
        kinds = self.kinds
        for event in events:
            if event.get("ph") != "X":
                continue
            category = event.get("cat")
            if not isinstance(category, str):
                continue
            if category not in kinds:
                kinds[category] = _KINDS.get(category.lower())
            kind = kinds[category]
            if kind is not None:
                self._take(kind, event)

    def _take(self, kind: str, event: Mapping[str, Any]) -> None:
        name, start_us, duration_us = event.get("name"), event.get("ts"), event.get("dur", 0)
        if not isinstance(name, str) or not _is_time(start_us) or not _is_time(duration_us):
            return
        args = event.get("args")
        if not isinstance(args, dict):
            args = {}
        if kind == "operators" and name.startswith(_NAMED_BY_PROFILER):
            kind = "annotations"
        if kind == "device":
            lane = f"stream {args['stream']}" if "stream" in args else str(event.get("tid"))
        else:
            lane = f"{event.get('pid')}/{event.get('tid')}"
        link = args.get("correlation", -1)
        row = self.columns[kind].add(
            start_us, max(duration_us, 0), name, lane, link if isinstance(link, int) and abs(link) < 1 << 62 else -1
        )
        self._note_call(kind, name, args, start_us, duration_us, lane, row)

    def _note_call(self, kind: str, name: str, args: Mapping[str, Any], start_us: float, duration_us: float, lane: str, row: int) -> None:
        if kind == "device":
            if (call := call_of_metadata(args)) is not None:
                self.kernel_calls[row] = call
        elif name == "record_param_comms":
            if (call := call_of_metadata(args)) is not None:
                self.host_calls.append((start_us, start_us + duration_us, lane, call))
        elif kind == "annotations" and name.startswith(("nccl:", "gloo:")):
            self.host_calls.append((start_us, start_us + duration_us, lane, call_of_annotation(name, args)))


def read_kineto(stream: Readable, path: str, order: int = 0) -> Trace:
    """One file of torch.profiler.

    Args:
        stream: its plain bytes.
        path: to show, and to guess the rank from where the trace does not say it (``rank3``, ``worker3``).
        order: rank of last resort: the file's number among those given.

    Raises:
        BadTrace: it is not a trace, or holds no span.
    """
    events = EventStream(stream)
    reading = _Reading()
    reading.take(events)
    return _trace(reading, events, path, order)


def _trace(reading: _Reading, events: EventStream, path: str, order: int) -> Trace:
    from meshwright.recording.json_events import BadTrace

    starts = [min(columns.start_us) for columns in reading.columns.values() if columns.start_us]
    if not starts:
        raise BadTrace("holds no span: the profiler recorded nothing, or it is not a Kineto trace")
    origin_us = float(min(starts))
    info = events.header.get("distributedInfo")
    rank, told = _rank(info, path, order)
    device, rows = reading.columns["device"].spans(origin_us)
    launches, annotations, operators = (reading.columns[kind].spans(origin_us)[0] for kind in ("launches", "annotations", "operators"))
    groups = groups_of_header(info)
    kernel_calls = {place: reading.kernel_calls[row] for place, row in enumerate(rows.tolist()) if row in reading.kernel_calls}
    communications, compute, suspects = _split(device, kernel_calls, launches, _host_calls(reading, origin_us), groups)
    if not len(device):
        communications = _on_the_host(annotations, _host_calls(reading, origin_us), groups)
    base_ns = events.header.get("baseTimeNanoseconds")
    return Trace(
        path=path, rank=rank, rank_told=told,
        world_size=_positive(info.get("world_size")) if isinstance(info, dict) else 0,
        origin_s=origin_us / 1e6 + (base_ns / 1e9 if isinstance(base_ns, int | float) else 0.0),
        device=_device(events.header.get("deviceProperties")), compute=compute, launches=launches, annotations=annotations,
        operators=operators, communications=communications, groups=groups, suspects=suspects, notes=_notes(events),
    )  # fmt: skip


def _host_calls(reading: _Reading, origin_us: float) -> list[tuple[float, float, str, Call]]:
    calls = [((start - origin_us) / 1e6, (end - origin_us) / 1e6, lane, call) for start, end, lane, call in reading.host_calls]
    return sorted(calls, key=lambda each: (each[0], -each[1]))


def _split(
    device: Spans, kernel_calls: Mapping[int, Call], launches: Spans, host_calls: list[tuple[float, float, str, Call]],
    groups: Mapping[str, tuple[int, ...]],
) -> tuple[tuple[Communication, ...], Spans, dict[str, float]]:  # fmt: skip
    """Communication kernels, the others, and the unknown ones with their seconds."""
    import numpy as np

    is_communication = device.named(lambda name: communication_kernel(name) is not None)
    for place in kernel_calls:
        is_communication[place] = True  # whatever it is called: the profiler says that a collective launched it
    launched = {int(link): place for place, link in enumerate(launches.link) if link >= 0} if is_communication.any() else {}
    found, suspects = [], dict[str, float]()
    finder = _CallFinder(host_calls)
    for place in np.flatnonzero(is_communication).tolist():
        name = device.names[device.name[place]]
        launch = launched.get(int(device.link[place]))
        launched_s = None if launch is None else float(launches.start_s[launch])
        call = kernel_calls.get(place)
        if launch is not None and (call is None or not call.payload_bytes):
            call = merged(call, finder.find(float(launches.start_s[launch]), launches.lanes[launches.lane[launch]]))
        kernel = communication_kernel(name)
        if kernel is not None and not kernel.known:
            suspects[name] = suspects.get(name, 0.0) + float(device.end_s[place] - device.start_s[place])
        found.append(
            Communication(
                start_s=float(device.start_s[place]), end_s=float(device.end_s[place]), op=kernel.op if kernel else op_in_words(name),
                library=kernel.library if kernel else "unknown", kernel=name, stream=device.lanes[device.lane[place]],
                known=kernel is None or kernel.known, call=_with_ranks(call or Call(), groups), launched_s=launched_s,
            )
        )  # fmt: skip
    return tuple(found), device.where(~is_communication), suspects


def _on_the_host(
    annotations: Spans, host_calls: list[tuple[float, float, str, Call]], groups: Mapping[str, tuple[int, ...]]
) -> tuple[Communication, ...]:
    """Of ranks without a device: the spans of gloo's collectives."""
    calls = {(start, lane): call for start, _, lane, call in host_calls}
    found = []
    for place in annotations.named(lambda name: name.startswith("gloo:")).nonzero()[0].tolist():
        start_s, name, lane = (
            float(annotations.start_s[place]),
            annotations.names[annotations.name[place]],
            annotations.lanes[annotations.lane[place]],
        )
        call = _with_ranks(calls.get((start_s, lane), Call()), groups)
        end_s = float(annotations.end_s[place])
        found.append(
            Communication(
                start_s=start_s, end_s=end_s, op=call.op or op_in_words(name), library="gloo", kernel=name, stream="host", call=call
            )
        )
    return tuple(found)


def _with_ranks(call: Call, groups: Mapping[str, tuple[int, ...]]) -> Call:
    return call if call.ranks or call.group not in groups else merged(call, Call(ranks=groups[call.group]))


class _CallFinder:
    """The calls during which something was launched: those of its thread that contain the moment."""

    DEEPEST = 4
    """Calls that can lie within each other: record_param_comms and the annotation within it, and room."""

    def __init__(self, calls: Iterable[tuple[float, float, str, Call]]) -> None:
        self.lanes: dict[str, list[tuple[float, float, Call]]] = {}
        for start_s, end_s, lane, call in calls:
            self.lanes.setdefault(lane, []).append((start_s, end_s, call))

    def find(self, moment_s: float, lane: str) -> Call | None:
        from bisect import bisect_right

        calls = self.lanes.get(lane, [])
        place = bisect_right(calls, moment_s, key=lambda each: each[0])
        holding = [call for _, end_s, call in calls[max(place - self.DEEPEST, 0) : place] if end_s >= moment_s]
        result: Call | None = None
        for call in holding:  # the outer one knows the group, the inner one the tensor
            result = merged(result, call)
        return result


def _rank(info: object, path: str, order: int) -> tuple[int, bool]:
    """The rank, and whether the trace or its name says it."""
    if isinstance(info, dict) and isinstance(info.get("rank"), int) and info["rank"] >= 0:
        return info["rank"], True
    name = path.replace("\\", "/").rpartition("/")[2]
    if match := re.search(r"(?:rank|worker|gpu)[-_.]?(\d{1,6})(?!\d)", name, re.IGNORECASE):
        return int(match[1]), True
    return order, False


def _is_time(value: object) -> TypeGuard[float]:
    """Microseconds of this millennium; not NaN."""
    return isinstance(value, int | float) and -MOST_US < value < MOST_US


def _positive(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _device(properties: object) -> str:
    first = properties[0] if isinstance(properties, list) and properties else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) else ""


def _notes(events: EventStream) -> tuple[str, ...]:
    notes = []
    if events.truncated:
        notes.append("ends in the middle; what came before was used")
    if events.bad_events:
        notes.append(f"{events.bad_events:,} events are not JSON and were left out")
    return tuple(notes)
