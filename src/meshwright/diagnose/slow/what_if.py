"""What a job would take if nothing in it were slow, and whose slowness it is: played again with some durations made ordinary.

arXiv 2505.05713, sections 3 and 4. Their symbols: T (the job as traced, played again) = ``played_s``; T_ideal (computations at the mean of
all workers and steps, transfers at the median) = ``ideal_s``; S = T / T_ideal = ``slowdown``; their M_W and M_S, the part of the loss
that goes away when a worker or a stage is made ordinary, = ``share_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.diagnose.slow.operation_graph import OperationGraph

if TYPE_CHECKING:
    from meshwright.diagnose.evidence import Evidence
    from meshwright.diagnose.slow.operation_graph import Grid, Node

__all__ = ["WhatIf", "what_if", "what_ifs"]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The answer for one job.

    Attributes:
        played_s, ideal_s, traced_s: seconds of a step, mean over steps. ``traced_s`` has the gaps between operations, too.
        workers: by (data rank, stage), the share of the loss that goes away when it alone is made ordinary; stages, kinds: likewise.
        waiting: by worker, the share of the step in which it neither computes nor takes part in a transfer.
        compute_s: by worker, of one forward and of one backward: mean.
        graph: what was played.
    """

    graph: OperationGraph

    played_s: float
    ideal_s: float
    traced_s: float
    steps: int
    workers: Mapping[tuple[int, int], float]
    stages: Mapping[int, float]
    kinds: Mapping[str, float]
    waiting: Mapping[tuple[int, int], float]
    compute_s: Mapping[tuple[int, int], tuple[float, float]]

    @property
    def slowdown(self) -> float:
        return self.played_s / self.ideal_s

    @property
    def computing(self) -> float:
        """Share of the loss that computations explain, of all workers together."""
        return sum(share for kind, share in self.kinds.items() if kind.endswith("-compute") or kind == "optimizer")

    @property
    def lost_s(self) -> float:
        """Of a step."""
        return self.played_s - self.ideal_s


def what_ifs(evidence: Evidence) -> tuple[WhatIf, ...]:
    """Of every table that was read."""
    return tuple(map(what_if, evidence.of(OperationGraph)))


def what_if(graph: OperationGraph) -> WhatIf:
    """Play the job as it was, as it ought to be, and with each worker, stage and kind of operation made ordinary."""
    ideal = _ideal(graph)
    played_s, ideal_s = (float(graph.play(duration).mean()) for duration in (graph.duration_s, ideal))
    lost_s = played_s - ideal_s

    def share_of(picks: Callable[[Node], bool]) -> float:
        mixed = graph.duration_s.copy()
        rows = [place for place, node in enumerate(graph.nodes) if picks(node)]
        mixed[rows] = ideal[rows]
        return (played_s - float(graph.play(mixed).mean())) / lost_s if lost_s > 0 else 0.0

    workers = sorted({node.worker for node in graph.nodes})
    busy = dict.fromkeys(workers, 0.0)
    for node, duration in zip(graph.nodes, graph.duration_s, strict=True):
        if not node.kind.endswith("-send"):  # messages run beside
            busy[node.worker] += float(duration.mean())
    return WhatIf(
        graph=graph, played_s=played_s, ideal_s=ideal_s, traced_s=float(graph.traced_s.mean()), steps=len(graph.steps),
        workers={worker: share_of(lambda node, worker=worker: node.worker == worker) for worker in workers},  # type: ignore[misc]
        stages={stage: share_of(lambda node, stage=stage: node.stage == stage) for stage in sorted({stage for _, stage in workers})},  # type: ignore[misc]
        kinds={kind: share_of(lambda node, kind=kind: node.kind == kind) for kind in sorted({node.kind for node in graph.nodes})},  # type: ignore[misc]
        waiting={worker: max(1 - seconds / played_s, 0.0) for worker, seconds in busy.items()},
        compute_s={worker: _compute(graph, worker) for worker in workers},
    )  # fmt: skip


def _compute(graph: OperationGraph, worker: tuple[int, int]) -> tuple[float, float]:
    import numpy as np

    def mean(kind: str) -> float:
        rows = [place for place, node in enumerate(graph.nodes) if node.worker == worker and node.kind == kind]
        return float(np.mean(graph.duration_s[rows])) if rows else 0.0

    return mean("forward-compute"), mean("backward-compute")


def _ideal(graph: OperationGraph) -> Grid:
    """Computations take the mean over workers and steps, transfers the median: their distribution has a long tail."""
    import numpy as np

    ideal = np.empty_like(graph.duration_s)
    for kind in {node.kind for node in graph.nodes}:
        rows = [place for place, node in enumerate(graph.nodes) if node.kind == kind]
        computes = kind.endswith("-compute") or kind == "optimizer"
        ideal[rows] = np.mean(graph.duration_s[rows]) if computes else np.median(graph.duration_s[rows])
    return ideal
