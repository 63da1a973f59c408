"""Records every collective and P2P that torch executes on this rank, from below: a dispatch mode sees c10d's operators.

So it sees what FSDP2, DTensor, pipelining and our own layers send, forward and backward, with the tensors that they
really send; no layer reports what it did. (Backward runs in the calling thread on CPU, and thus under the mode.)

Payload bytes are DESIGN section 4.1's: the tensor passed in for all_reduce, all_to_all, broadcast, send; the full tensor
for all_gather and reduce_scatter.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, Work
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.recording.events import Event, Group, Header
from meshwright.runtime import scope
from meshwright.runtime.operators import READERS, ROOTED, Call, flat_tensors

scope.transparent(__file__)

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bf16", torch.float16: "float16",
    torch.float8_e4m3fn: "fp8", torch.int64: "int64", torch.int32: "int32", torch.int8: "int8", torch.bool: "bool",
    torch.uint8: "uint8",
}  # fmt: skip
"""torch's dtypes by the names of units.DTYPE_BYTES."""


class Sink(Protocol):
    """What takes the events: recording.write.RecordingWriter, or a Collected list."""

    def event(self, event: Event) -> None: ...

    def completed(self, index: int, started_s: float | None, completed_s: float | None) -> None: ...


class Collected:
    """A sink that keeps the events in memory, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.completed_s: dict[int, float | None] = {}

    def event(self, event: Event) -> None:
        self.events.append(event)

    def completed(self, index: int, started_s: float | None, completed_s: float | None) -> None:
        self.completed_s[index] = completed_s


class Recorder(TorchDispatchMode):
    """Active inside ``with``; events go to ``sink``.

    Args:
        sink: takes the events.
        groups: this rank's groups by torch's name of their process group; one that is not there is called by torch's own name.
    """

    def __init__(self, sink: Sink, groups: Mapping[str, Group] | None = None) -> None:
        super().__init__()
        self._sink = sink
        self._groups = dict(groups or {})
        self._next_index = 0
        self._seqs: Counter[tuple[str, str]] = Counter()
        # Works are kept alive here so that torch hands the same Python object to the caller, and its id stays its own.
        self._waited: dict[int, tuple[Work, Event]] = {}
        self._unfinished: dict[int, Event] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor takes the operator apart; what it sends for it comes back here
        read = READERS.get(func._schema.name)
        if read is None:
            result = func(*args, **(kwargs or {}))
            if func._schema.name == "_c10d_functional::wait_tensor":
                event = self._unfinished.pop(result.untyped_storage()._cdata, None)
                if event is not None:
                    self._done(event)
            return result
        calls = read({argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | (kwargs or {}))
        events = [self._record(call) for call in calls]
        result = func(*args, **(kwargs or {}))
        for event in events:
            self._complete(event, result)
        return result

    def mark(self, what: str) -> None:
        """A named moment."""
        now = time.monotonic()
        self._put(kind="mark", op=what, enqueued_s=now, started_s=now, completed_s=now)

    @contextmanager
    def compute(self, what: str = "") -> Any:
        """A span of computation, stamped with the scope's phase and module."""
        event = self._put(kind="compute", op=what, enqueued_s=time.monotonic())
        try:
            yield
        finally:
            self._sink.completed(event.index, event.enqueued_s, time.monotonic())

    def _record(self, call: Call) -> Event:
        kind: Literal["p2p", "collective"] = "p2p" if call.op in ("send", "recv") else "collective"
        group, process_group = self._group_of(call.group)
        seq = self._seqs[group, kind]
        self._seqs[group, kind] += 1
        peer = call.peer
        if peer is not None and kind == "p2p" and process_group is not None:
            peer = dist.get_global_rank(process_group, peer)
        elif peer is not None and process_group is not None and call.op in ROOTED:
            peer = dist.get_global_rank(process_group, peer)
        first = call.tensors[0]
        shape = tuple(first.shape) if len(call.tensors) == 1 else (sum(tensor.numel() for tensor in call.tensors),)
        if call.factor > 1:
            shape = (shape[0] * call.factor, *shape[1:]) if shape else (call.factor,)
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in call.tensors) * call.factor
        return self._put(
            kind=kind, op=call.op, reduce_op=call.reduce_op, group=group, seq=seq, peer=peer, tag=call.tag,
            dtype=DTYPE_NAMES.get(first.dtype, str(first.dtype).removeprefix("torch.")), shape=tuple(map(int, shape)),
            payload_bytes=int(num_bytes), input_splits=call.input_splits, output_splits=call.output_splits,
            asynchronous=call.asynchronous, enqueued_s=time.monotonic(),
        )  # fmt: skip

    def _put(self, **values: Any) -> Event:
        now = scope.current()
        module, phase = _fsdp_unit() if values["kind"] == "collective" else ("", "")
        event = Event(
            index=self._next_index, step=now.step, micro_batch=now.micro_batch, chunk=now.chunk, phase=phase or now.phase,
            module=module or now.module,
            call_site=now.call_site or scope.call_site(), **values,
        )  # fmt: skip
        self._next_index += 1
        self._sink.event(event)
        return event

    def _group_of(self, group: Any) -> tuple[str, ProcessGroup | None]:
        if isinstance(group, str):
            name, process_group = group, dist.distributed_c10d._resolve_process_group(group)
        else:
            process_group = ProcessGroup.unbox(group)
            name = process_group.group_name
        known = self._groups.get(name)
        return (known.name if known else name), process_group

    def _complete(self, event: Event, result: Any) -> None:
        """Have the event completed when its work is done; gloo's works do not say when they started.

        Three ways to know: a work's future (most collectives), the caller's wait for it (P2P and reduce_scatter of gloo, which
        have no future; then it is when the wait ended), and the ``wait_tensor`` on a functional operator's result.
        """
        work = _work_of(result)
        if work is None:
            for tensor in flat_tensors([result]):
                self._unfinished[tensor.untyped_storage()._cdata] = event
            return
        try:
            future = work.get_future()
        except RuntimeError:
            self._waited[id(work)] = (work, event)
            return

        def done(future: Any) -> None:
            try:
                future.value()
            except RuntimeError:
                return
            self._done(event)

        future.add_done_callback(done)

    def _done(self, event: Event) -> None:
        self._sink.completed(event.index, None, time.monotonic())

    def __enter__(self) -> Recorder:
        _active.append(self)
        wait = self._torch_wait = Work.wait
        waited = self._waited

        def recorded_wait(work: Work, *args: Any, **kwargs: Any) -> Any:
            result = wait(work, *args, **kwargs)
            _, event = waited.pop(id(work), (None, None))
            if event is not None:
                self._done(event)
            return result

        Work.wait = recorded_wait  # type: ignore[method-assign,assignment]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        Work.wait = self._torch_wait  # type: ignore[method-assign]
        _active.remove(self)
        super().__exit__(*error)


_active: list[Recorder] = []


@contextmanager
def computing(what: str) -> Iterator[None]:
    """A span of computation for the recorder inside whose ``with`` the program is; nothing without one."""
    if not _active:
        yield
        return
    with _active[-1].compute(what):
        yield


def _work_of(result: Any) -> Work | None:
    """The Work among an operator's results; functional operators have none (their wait is another operator)."""
    for value in result if isinstance(result, tuple | list) else (result,):
        if isinstance(value, torch.ScriptObject):
            return Work.unbox(value)
    return None


def _fsdp_unit() -> tuple[str, str]:
    """What the FSDP2 unit whose hook is running holds, and "reduce" if it reduces gradients; "", "" outside of any.

    FSDP2 gathers and reduces from hooks, which run outside of the modules' own scope; its parameter group knows the parameters. A unit with
    parameters on two meshes has two groups, each of which is called by the module that all its parameters are in.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith("_fsdp_param_group.py"):
            group = frame.f_locals.get("self")
            if group is not None and hasattr(group, "fsdp_params"):
                module = _shared_module([param._param_fqn or "" for param in group.fsdp_params]) if group._module_fqn else "root"
                return module, "reduce" if frame.f_code.co_name == "post_backward" else ""
        frame = frame.f_back
    return "", ""


def _shared_module(parameters: Sequence[str]) -> str:
    """``layers.2.moe.experts`` of its two matrices, ``layers.2`` of all that is in that layer."""
    paths = [name.split(".")[:-1] for name in parameters]
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def header(
    rank: int, world_size: int, groups: Iterable[Group] = (), coordinates: Mapping[str, int] | None = None, plan_hash: str = ""
) -> Header:
    """The header of a recording that this process makes."""
    return Header(
        plan_hash=plan_hash, world_size=world_size, rank=rank, coordinates=dict(coordinates or {}), groups=tuple(groups),
        host=socket.gethostname(), pid=os.getpid(), wall_offset_s=time.time() - time.monotonic(),
        versions={"torch": torch.__version__},
    )  # fmt: skip
