"""Which phase of a step a kernel belongs to: that of the host code that launched it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from meshwright.diagnose.slow import intervals

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from meshwright.diagnose.slow.intervals import Intervals
    from meshwright.recording.trace import Spans, Trace

__all__ = ["COMPUTE_PHASES", "data_loading", "launch_moments", "phases_of", "steps_of"]

COMPUTE_PHASES = ("forward", "backward", "optimizer")

_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")
"""Operators that autograd's threads run: the wrapper of today's torch, and the nodes themselves in older traces."""

_OPTIMIZER = re.compile(r"^Optimizer\.(?:step|zero_grad)#|^\W*optimi[sz]er\b", re.IGNORECASE)
_BACKWARD_REGION = re.compile(r"^\W*backward\b", re.IGNORECASE)
_LOADING = re.compile(
    r"^enumerate\(DataLoader\)#|^\W*(?:data[ _]?load(?:er|ing)?|get_batch|next_batch|batch[ _-]?generator)\b", re.IGNORECASE
)
_STEP = re.compile(r"^ProfilerStep#?\d*")


def steps_of(trace: Trace) -> Spans:
    """The annotations of steps; none if the program did not call the profiler's ``step()``."""
    return trace.annotations.where(trace.annotations.named(_STEP.match))


def data_loading(trace: Trace) -> Intervals:
    """When a host thread waited for its data loader."""
    spans = trace.annotations.where(trace.annotations.named(_LOADING.match))
    return intervals.of(spans.start_s, spans.end_s)


def launch_moments(trace: Trace, kernels: Spans) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(seconds, lane) at which each kernel was launched; NaN and -1 where the trace does not tell."""
    import numpy as np

    moments, lanes = np.full(len(kernels), np.nan), np.full(len(kernels), -1, dtype=np.int64)
    order = np.argsort(trace.launches.link, kind="stable")
    links = trace.launches.link[order]
    if not len(links) or not len(kernels):
        return moments, lanes
    place = np.minimum(np.searchsorted(links, kernels.link), len(links) - 1)
    found = (links[place] == kernels.link) & (kernels.link >= 0)
    moments[found] = trace.launches.start_s[order[place[found]]]
    lanes[found] = trace.launches.lane[order[place[found]]]
    return moments, lanes


def phases_of(trace: Trace, kernels: Spans) -> NDArray[np.int64]:
    """Of each kernel, the index into COMPUTE_PHASES. Without a sign of backward or optimizer all is forward."""
    import numpy as np

    moments, lanes = launch_moments(trace, kernels)
    if not len(trace.launches):  # a host that computes itself: its operators are the kernels
        moments, lanes = kernels.start_s, kernels.lane
    phases = np.zeros(len(kernels), dtype=np.int64)
    backward = trace.operators.where(trace.operators.named(_BACKWARD.search))
    names = trace.launches.lanes if len(trace.launches) else kernels.lanes
    for lane in np.unique(backward.lane).tolist():
        thread = trace.operators.lanes[lane]
        if thread not in names:
            continue
        mine = backward.lane == lane
        inside = intervals.within(moments, intervals.of(backward.start_s[mine], backward.end_s[mine]))
        phases[inside & (lanes == names.index(thread))] = 1
    for pattern, phase in ((_BACKWARD_REGION, 1), (_OPTIMIZER, 2)):
        spans = trace.annotations.where(trace.annotations.named(pattern.search))
        inside = intervals.within(moments, intervals.of(spans.start_s, spans.end_s))
        phases[inside] = phase
    return phases
