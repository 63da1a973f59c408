"""What each operation of a pipelined step waits for: a graph, over which the step can be played again with other durations.

The dependencies are those of arXiv 2505.05713, section 3: a worker computes in program order; a computation waits for the message
with its input; a message leaves when its computation is done, after the one before it on the same way; a collective starts when its last
member arrives, and the operations of a worker around it stay in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from meshwright.recording.operations import Operations

    Grid = NDArray[np.float64]

__all__ = ["MESSAGE_KINDS", "Node", "OperationGraph", "graph_of", "group_of"]

MESSAGE_KINDS = {"forward": ("forward-send", "forward-recv"), "backward": ("backward-send", "backward-recv")}
COMPUTE = {"forward-compute": "forward", "backward-compute": "backward"}


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of one worker, the same in every step. A message is one node, of the worker that sends it."""

    kind: str
    data_rank: int
    stage: int
    sequence: int

    @property
    def worker(self) -> tuple[int, int]:
        return self.data_rank, self.stage


@dataclass(frozen=True, kw_only=True)
class OperationGraph:
    """The step's operations in an order in which they can be played.

    Attributes:
        nodes: in that order. before: of each, the places of the nodes that must have ended.
        duration_s: of shape [nodes, steps]: computing, or the transfer alone.
        steps: numbers of the steps. traced_s: of each step, from its first operation to its last one's end.
        left_out: steps that lack an operation which others have.
        rank: global, of each (data rank, stage). path: of the table.
    """

    nodes: tuple[Node, ...]
    before: tuple[tuple[int, ...], ...]
    duration_s: Grid
    steps: tuple[int, ...]
    traced_s: Grid
    left_out: int = 0
    rank: Mapping[tuple[int, int], int] = field(default_factory=dict)
    path: str = ""

    def play(self, duration_s: Grid) -> Grid:
        """Seconds of each step if the operations took ``duration_s`` (of shape [nodes, steps]), launched as soon as they can be."""
        import numpy as np

        return np.asarray(self.ends(duration_s).max(axis=0))

    def ends(self, duration_s: Grid) -> Grid:
        """When each operation ends, of shape [nodes, steps]."""
        import numpy as np

        end = np.zeros_like(duration_s)
        for place, before in enumerate(self.before):
            ready = end[list(before)].max(axis=0) if before else 0.0
            end[place] = ready + duration_s[place]
        return end


def group_of(kind: str, worker: tuple[int, int], workers: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The workers that do this operation together, by what its name says: the tied embedding is on the first and last stage, the norm of
    the gradient is over everything, parameters and gradients are sharded over the data ranks of a stage."""
    stages = {stage for _, stage in workers}
    if kind.startswith("embedding"):
        return [each for each in workers if each[0] == worker[0] and each[1] in (min(stages), max(stages))]
    if "clip" in kind or "norm-all-reduce" in kind:
        return list(workers)
    if kind.startswith("params-") or kind == "grads-reduce-scatter" or kind == "grads-all-reduce":
        return [each for each in workers if each[1] == worker[1]]
    return [worker]  # over ranks that the table does not have (tensor parallel), or alone


def graph_of(table: Operations) -> OperationGraph:
    """The graph of a table.

    Raises:
        ValueError: no step is complete, or its sends and receives do not pair.
    """
    from graphlib import CycleError, TopologicalSorter

    traced, steps, traced_s, left_out = _by_node(table)
    programs = _programs(traced)
    before, duration = _message_nodes(traced, programs, table)
    workers = sorted(programs)
    previous = {node: nodes[place - 1] for nodes in programs.values() for place, node in enumerate(nodes) if place}
    for node in (node for nodes in programs.values() for node in nodes):
        members = [Node(node.kind, *worker, node.sequence) for worker in group_of(node.kind, node.worker, workers)]
        members = [member for member in members if member in traced]
        start, end = traced[node]
        last = start if len(members) == 1 else _latest([traced[member][0] for member in members])
        duration[node] = (end - last).clip(min=0)
        before[node] += [previous[member] for member in members if member in previous]
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        raise ValueError("its operations wait for each other in a circle") from None
    place = {node: index for index, node in enumerate(order)}
    return OperationGraph(
        nodes=tuple(order), before=tuple(tuple(place[each] for each in before[node]) for node in order),
        duration_s=_stack([duration[node] for node in order]),
        steps=steps, traced_s=traced_s, left_out=left_out, rank=table.rank, path=table.path,
    )  # fmt: skip


Traced = dict[Node, tuple["Grid", "Grid"]]


def _by_node(table: Operations) -> tuple[Traced, tuple[int, ...], Grid, int]:
    """(start, end) of each node over the complete steps."""
    import numpy as np

    steps, place = np.unique(table.step, return_inverse=True)
    traced: Traced = {}
    columns = zip(
        table.kind.tolist(), table.data_rank.tolist(), table.stage.tolist(), table.sequence.tolist(), place.tolist(),
        table.start_s.tolist(), table.end_s.tolist(), strict=True,
    )  # fmt: skip
    for kind, data_rank, stage, sequence, step, start, end in columns:
        node = Node(table.kinds[kind], data_rank, stage, sequence)
        if node not in traced:
            traced[node] = (np.full(len(steps), np.nan), np.full(len(steps), np.nan))
        traced[node][0][step], traced[node][1][step] = start, end
    missing = np.isnan(_stack([start for start, _ in traced.values()])).any(axis=0)
    if missing.all():
        raise ValueError("has no step in which every worker did the same operations")
    kept = {node: (start[~missing], end[~missing]) for node, (start, end) in traced.items()}
    first, last = (_stack([pair[index] for pair in kept.values()]) for index in (0, 1))
    return kept, tuple(steps[~missing].tolist()), last.max(axis=0) - first.min(axis=0), int(missing.sum())


def _programs(traced: Traced) -> dict[tuple[int, int], list[Node]]:
    """Each worker's operations in order of time, messages left out: they run beside."""
    messages = {kind for pair in MESSAGE_KINDS.values() for kind in pair}
    programs: dict[tuple[int, int], list[Node]] = defaultdict(list)
    for node in traced:
        if node.kind not in messages:
            programs[node.worker].append(node)
    for nodes in programs.values():
        nodes.sort(key=lambda node: (float(traced[node][0].mean()), float(traced[node][1].mean())))
    return dict(programs)


def _message_nodes(
    traced: Traced, programs: dict[tuple[int, int], list[Node]], table: Operations
) -> tuple[dict[Node, list[Node]], dict[Node, Grid]]:
    """What each computation and message waits for, and how long a message travels. The k-th message of a worker in a direction is of its
    k-th computation that has a successor, and goes to the k-th computation of the next worker that has a predecessor."""
    import numpy as np

    before: dict[Node, list[Node]] = {node: [] for nodes in programs.values() for node in nodes}
    duration: dict[Node, Grid] = {}
    chunks = _chunks(table)
    last = max(chunks.values(), default=0)
    stages = 1 + max(stage for _, stage in programs)
    for direction, (sending, receiving) in MESSAGE_KINDS.items():
        step = 1 if direction == "forward" else -1
        for (data_rank, stage), nodes in programs.items():
            mine = [node for node in nodes if COMPUTE.get(node.kind) == direction]
            senders = [node for node in mine if chunks[node] != (last if step == 1 else 0)]
            there = (data_rank, (stage + step) % stages)
            receivers = [
                node for node in programs[there] if COMPUTE.get(node.kind) == direction and chunks[node] != (0 if step == 1 else last)
            ]
            if len(senders) != len(receivers):
                raise ValueError(
                    f"has {len(senders)} {sending} of data rank {data_rank}, stage {stage} for {len(receivers)} computations there"
                )
            for number, (sender, receiver) in enumerate(zip(senders, receivers, strict=True)):
                message = Node(sending, data_rank, stage, number)
                ends = [node for node in (message, Node(receiving, *there, number)) if node in traced]
                before[message] = [sender] + ([Node(sending, data_rank, stage, number - 1)] if number else [])
                before[receiver].append(message)
                late = _latest([traced[node][0] for node in ends]) if ends else np.zeros(len(traced[sender][0]))
                spans = [(traced[node][1] - late).clip(min=0) for node in ends]
                duration[message] = np.minimum.reduce(spans) if spans else late
    return before, duration


def _chunks(table: Operations) -> dict[Node, int]:
    """The model chunk of each computation."""
    computing = [place for place, kind in enumerate(table.kinds) if kind in COMPUTE]
    rows = [row for row, kind in enumerate(table.kind.tolist()) if kind in computing]
    return {
        Node(table.kinds[table.kind[row]], int(table.data_rank[row]), int(table.stage[row]), int(table.sequence[row])): int(
            table.chunk[row]
        )
        for row in rows
    }


def _latest(starts: Sequence[Grid]) -> Grid:
    import numpy as np

    return np.asarray(np.maximum.reduce(list(starts)))


def _stack(rows: Sequence[Grid]) -> Grid:
    import numpy as np

    return np.stack(list(rows))
