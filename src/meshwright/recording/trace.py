"""What a profiler saw on one rank, whatever the profiler: spans in columns, so that millions of them fit, and collectives one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]

__all__ = ["Call", "Communication", "Spans", "Trace"]


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Spans of time, one per row, in order of their start.

    Attributes:
        start_s, end_s: seconds after the trace's origin.
        name: index into ``names``.
        lane: index into ``lanes``: the stream, or the thread.
        link: the profiler's correlation number, which a kernel shares with the call that launched it; -1 where there is none.
        names, lanes: texts.
    """

    start_s: Floats
    end_s: Floats
    name: Integers
    lane: Integers
    link: Integers
    names: tuple[str, ...]
    lanes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_s)

    def where(self, mask: Booleans) -> Spans:
        """The rows of which ``mask`` is true."""
        columns = {key: getattr(self, key)[mask] for key in ("start_s", "end_s", "name", "lane", "link")}
        return Spans(names=self.names, lanes=self.lanes, **columns)

    def named(self, wanted: Any) -> Booleans:
        """Of each row, whether ``wanted(name)``, asked once per name."""
        import numpy as np

        answers = np.fromiter((bool(wanted(name)) for name in self.names), dtype=bool, count=len(self.names))
        return answers[self.name] if len(self.names) else np.zeros(len(self), dtype=bool)

    @cached_property
    def duration_s(self) -> Floats:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What the host asked a process group for; from the profiler's metadata, so parts may be missing.

    Attributes:
        op: torch.distributed's name, "" if unknown.
        group: name of the process group, "" if unknown. ranks: of the group, () if unknown.
        seq: number of the collective in its group, None if the profiler did not say.
        payload_bytes: DESIGN section 4.1; 0 if unknown. dtype: "" if unknown.
        peer: global rank at the other end of a send or recv.
    """

    op: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    seq: int | None = None
    payload_bytes: int = 0
    dtype: str = ""
    peer: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """One communication kernel on a rank's device, or the call itself where the host does it (gloo).

    Attributes:
        start_s, end_s: seconds after the trace's origin; the kernel runs, waiting for the others included.
        op, library: as its name tells, where ``call`` does not know the op.
        kernel: its name. stream: the lane it ran on. known: whether the name is one that Meshwright knows.
        call: what it was launched for.
        launched_s: when the host asked for it; None if the trace does not tell.
    """

    start_s: float
    end_s: float
    op: str
    library: str
    kernel: str
    stream: str
    known: bool = True
    call: Call = Call()
    launched_s: float | None = None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One rank's part of a profile.

    Attributes:
        rank: global; guessed from the file's name or the order of files where ``rank_told`` is false.
        world_size: of the job, 0 if the trace does not say.
        origin_s: moment of second 0, on the clock of the rank's host.
        device: name of the GPU, "" for none. host: of the machine, "" if the trace does not say it.
        compute: kernels that are not communication, and copies. launches: calls of the CUDA or HIP runtime.
        annotations: what the program named (``ProfilerStep#3``), threads as lanes. operators: calls of torch's operators on the host.
        communications: in order of start.
        groups: ranks of each process group.
        suspects: names of kernels that may be communication and are not known, with the seconds they took.
        notes: what is wrong with the file.
    """

    path: str
    rank: int
    rank_told: bool = True
    world_size: int = 0
    origin_s: float = 0.0
    device: str = ""
    host: str = ""
    compute: Spans
    launches: Spans
    annotations: Spans
    operators: Spans
    communications: tuple[Communication, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    suspects: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
