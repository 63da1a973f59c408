"""Where a rank's step goes: every moment of it counted once, as compute, exposed communication, or idling with its cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meshwright.diagnose.slow import intervals
from meshwright.diagnose.slow.phases import COMPUTE_PHASES, data_loading, launch_moments, phases_of, steps_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from meshwright.diagnose.slow.intervals import Intervals
    from meshwright.recording.trace import Communication, Spans, Trace

__all__ = ["IDLE_CAUSES", "HostCall", "StepSplit", "group_label", "kernels_of", "op_of", "split_of"]

IDLE_CAUSES = ("data loading", "host", "device")
"""data loading: the host waits for its data loader. host: the next kernel was not launched yet. device: it was, and waits for another
stream or for the driver."""


@dataclass(frozen=True, kw_only=True)
class HostCall:
    """The call of the CUDA or HIP runtime during which the device idled longest."""

    name: str
    start_s: float
    idle_s: float


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """Seconds of the profiled window of one rank; ``compute_s``, ``exposed_s`` and ``idle_s`` add up to ``window_s``.

    Attributes:
        rank: global.
        start_s, window_s: of the window, in the trace's own seconds: from the first step's start to the last one's end, or to that of
            its last kernel.
        steps: number of steps in it, 1 where the trace names none.
        compute_s: by phase.
        exposed_s: by (group, op): communication while nothing is computed. hidden_s: beside computation.
        idle_s: by cause, see IDLE_CAUSES.
        loading_s: the data loader's, whether the device idled or not; ``stepped_s``: the host's steps, to compare it with.
        on_device: whether the trace has a device; else the host's operators stand for kernels.
        idle: when, by cause.
        longest_call: what the host was in during most of the idling, None if nothing stands out.
    """

    rank: int
    start_s: float
    window_s: float
    steps: int
    compute_s: dict[str, float]
    exposed_s: dict[tuple[str, str], float]
    hidden_s: dict[tuple[str, str], float]
    idle_s: dict[str, float]
    loading_s: float
    stepped_s: float
    longest_call: HostCall | None = None
    on_device: bool = True
    idle: Mapping[str, Intervals] = field(default_factory=dict, repr=False, compare=False)

    @property
    def idle_share(self) -> float:
        """Of the window, without communication."""
        return sum(self.idle_s.values()) / self.window_s if self.window_s else 0.0


def op_of(communication: Communication) -> str:
    """The op as the call says it, else as the kernel's name does."""
    return communication.call.op or communication.op or "unknown op"


def group_label(communication: Communication) -> str:
    """The group's name, "" where the trace does not say it."""
    call = communication.call
    if call.group:
        return call.group
    return f"ranks {','.join(map(str, call.ranks))}" if call.ranks else ""


def split_of(trace: Trace) -> StepSplit:
    """The split of one rank's trace. Where there is no device, the host's operators stand for kernels."""
    kernels = kernels_of(trace)
    start_s, end_s, steps, stepped_s = _window(trace, kernels)
    whole = intervals.clipped(intervals.of(*_edges([(start_s, end_s)])), start_s, end_s)
    computing = intervals.clipped(intervals.of(kernels.start_s, kernels.end_s), start_s, end_s)
    exposed, hidden, communicating = _communication(trace.communications, computing, start_s, end_s)
    busy = intervals.union(computing, communicating)
    idle = intervals.subtraction(whole, busy)
    loading = intervals.clipped(data_loading(trace), start_s, end_s)
    causes = _idle_by_cause(trace, kernels, busy, idle, loading)
    return StepSplit(
        rank=trace.rank, start_s=start_s, window_s=end_s - start_s, steps=steps,
        compute_s=_by_phase(trace, kernels, start_s, end_s), exposed_s=exposed, hidden_s=hidden,
        idle_s={cause: intervals.length(each) for cause, each in causes.items()}, idle=causes, on_device=_on_device(trace),
        loading_s=intervals.length(loading), stepped_s=stepped_s, longest_call=_longest_call(trace, idle),
    )  # fmt: skip


def _idle_by_cause(trace: Trace, kernels: Spans, busy: Intervals, idle: Intervals, loading: Intervals) -> dict[str, Intervals]:
    rest = intervals.subtraction(idle, loading)
    host = intervals.intersection(rest, _unlaunched(trace, kernels, busy, float(idle[-1, 1]) if len(idle) else 0.0))
    return dict(zip(IDLE_CAUSES, (intervals.intersection(idle, loading), host, intervals.subtraction(rest, host)), strict=True))


def _edges(pairs: list[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    import numpy as np

    both = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def kernels_of(trace: Trace) -> Spans:
    """What computes: the device's kernels; where there is no device, the host's operators that are not about communication."""
    if len(trace.compute) or len(trace.launches):
        return trace.compute
    return trace.operators.where(
        ~trace.operators.named(lambda name: name.startswith(("c10d::", "_c10d_functional::", "record_param_comms")))
    )


def _window(trace: Trace, kernels: Spans) -> tuple[float, float, int, float]:
    """(start, end, steps, seconds of the host's steps). Kernels run after the host's step has ended: the last step's are waited for."""
    steps = steps_of(trace)
    last = max([float(kernels.end_s.max()) if len(kernels) else 0.0, *(each.end_s for each in trace.communications)])
    if len(steps):
        number = len(set(steps.name.tolist()))  # a step may be annotated on several threads
        stepped_s = intervals.length(intervals.of(steps.start_s, steps.end_s))
        return float(steps.start_s.min()), max(float(steps.end_s.max()), last), number, stepped_s
    spans = [trace.annotations, trace.operators, trace.launches, kernels]
    start = min([float(each.start_s.min()) for each in spans if len(each)] + [each.start_s for each in trace.communications[:1]])
    end = max([last] + [float(each.end_s.max()) for each in spans if len(each)])
    return start, end, 1, end - start


def _communication(
    communications: tuple[Communication, ...], computing: Intervals, start_s: float, end_s: float
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float], Intervals]:
    """Exposed and hidden seconds by (group, op), and all of it. Time shared by two collectives counts for the first that began."""
    by_kind: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for each in communications:
        by_kind[group_label(each), op_of(each)].append((each.start_s, each.end_s))
    exposed, hidden = {}, {}
    taken = computing
    for kind, pairs in sorted(by_kind.items(), key=lambda item: item[1][0]):
        mine = intervals.clipped(intervals.of(*_edges(pairs)), start_s, end_s)
        alone = intervals.subtraction(mine, taken)
        exposed[kind] = intervals.length(alone)
        hidden[kind] = intervals.length(intervals.intersection(mine, computing))
        taken = intervals.union(taken, mine)
    return exposed, hidden, intervals.subtraction(taken, computing) if by_kind else computing[:0]


def _by_phase(trace: Trace, kernels: Spans, start_s: float, end_s: float) -> dict[str, float]:
    """Compute by phase; where two phases overlap, the later one gets the shared time."""
    phases = phases_of(trace, kernels)
    found: dict[str, float] = {}
    taken = intervals.of(kernels.start_s[:0], kernels.end_s[:0])
    for index in reversed(range(len(COMPUTE_PHASES))):
        mine = intervals.clipped(intervals.of(kernels.start_s[phases == index], kernels.end_s[phases == index]), start_s, end_s)
        found[COMPUTE_PHASES[index]] = intervals.length(intervals.subtraction(mine, taken))
        taken = intervals.union(taken, mine)
    return {phase: found[phase] for phase in COMPUTE_PHASES}


def _unlaunched(trace: Trace, kernels: Spans, busy: Intervals, end_s: float) -> Intervals:
    """Gaps of the device that end with a kernel which the host launched after the gap had begun; and the gap at the end."""
    import numpy as np

    if not len(busy):
        return intervals.of(*_edges([(0.0, end_s)]))
    moments, _ = launch_moments(trace, kernels)
    starts = np.concatenate((kernels.start_s, [each.start_s for each in trace.communications]))
    launched = np.concatenate((moments, [np.nan if each.launched_s is None else each.launched_s for each in trace.communications]))
    order = np.argsort(starts, kind="stable")
    starts, launched = starts[order], launched[order]
    gaps = np.stack((np.concatenate(([-np.inf], busy[:-1, 1])), busy[:, 0]), axis=1)
    place = np.minimum(np.searchsorted(starts, gaps[:, 1]), len(starts) - 1)  # the kernel that ends the gap
    late = launched[place] >= gaps[:, 0]
    gaps = np.concatenate((gaps[late], [(busy[-1, 1], end_s)]))
    gaps[:, 0] = np.maximum(gaps[:, 0], -1e12)
    return intervals.of(gaps[:, 0], gaps[:, 1])


def _on_device(trace: Trace) -> bool:
    return bool(len(trace.compute)) or any(each.stream != "host" for each in trace.communications)


def _longest_call(trace: Trace, idle: Intervals) -> HostCall | None:
    """The single call that covers most of the idling: a thousand short launches are no one cause."""
    import numpy as np

    calls = trace.launches
    if not len(calls) or not len(idle):
        return None
    covered = intervals.covered(idle, calls.end_s) - intervals.covered(idle, calls.start_s)
    place = int(np.argmax(covered))
    return HostCall(name=calls.names[calls.name[place]], start_s=float(calls.start_s[place]), idle_s=float(covered[place]))
