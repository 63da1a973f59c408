"""When each computation of a pipeline starts and ends: a list of orders, durations, and nothing else.

A computation starts when its rank is free and its input has arrived; a rank never changes its order. So the times are the
longest paths of a graph, and one pass over it in an order in which every input comes first (schedule/order_graph.py) finds them
exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshwright.timeline.events import Timeline

if TYPE_CHECKING:
    from meshwright.schedule.actions import Schedule
    from meshwright.schedule.order_graph import OrderGraph
    from meshwright.timeline.costs import Costs

__all__ = ["simulate"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """The times of all computations of one step.

    Args:
        schedule: any order, also one read from a file.
        costs: durations in seconds.

    Raises:
        InputError: the order is impossible: some rank waits for ever; names rank, step and action.
    """
    graph = schedule.order_graph
    duration, transfer = _durations(graph, costs), _transfers(graph, costs)
    delay = np.where(graph.producer >= 0, transfer[graph.producer], 0.0)
    held = np.zeros_like(transfer) if costs.overlap else transfer
    starts, ends = _run(graph, duration, delay, held)
    return Timeline(
        schedule=graph.schedule,
        costs=costs,
        rank=graph.rank,
        kind=graph.kind,
        chunk=graph.chunk,
        micro_batch=graph.micro_batch,
        second_of_pair=graph.second_of_pair,
        start_s=starts,
        end_s=ends,
        producer=graph.producer,
        arrival_s=np.where(graph.producer >= 0, ends[graph.producer] + delay, 0.0),
        held_s=held,
    )


def _durations(graph: OrderGraph, costs: Costs) -> Floats:
    """Seconds of each computation; the first of a pair takes those of both, the second none."""
    forward, backward_input, backward_weight = (
        _of_action(values, graph.chunk, graph.micro_batch) for values in (costs.forward_s, costs.backward_input_s, costs.backward_weight_s)
    )
    duration: Floats = np.choose(graph.kind, [forward, backward_input + backward_weight, backward_input, backward_weight])
    first = np.flatnonzero(graph.first_of_pair)
    duration[first] += duration[first + 1] - costs.paired_saving_s[graph.chunk[first]]
    duration[first + 1] = 0.0
    return duration


def _of_action(values: Floats, chunk: Ints, micro_batch: Ints) -> Floats:
    result: Floats = values[chunk] if values.ndim == 1 else values[chunk, micro_batch]
    return result


def _transfers(graph: OrderGraph, costs: Costs) -> Floats:
    """Seconds of the message behind each computation; 0 where its result stays on the rank."""
    there, back = costs.forward_transfer_s[graph.chunk], costs.backward_transfer_s[graph.chunk]
    return np.where(graph.travels, np.where(graph.forward, there, back), 0.0)


def _run(graph: OrderGraph, duration: Floats, delay: Floats, held: Floats) -> tuple[Floats, Floats]:
    """Start and end of every computation. Plain lists: faster than numpy one element at a time.

    Index -1, of what needs nothing, is a last element that stays 0: nothing starts earlier.
    """
    count, order = len(duration), graph.pass_order
    start, end, free = [0.0] * count, [0.0] * (count + 1), [0.0] * (count + 1)
    second = graph.second_of_pair
    last_held = np.where(second, 0.0, held + np.where(graph.first_of_pair, np.roll(held, -1), 0.0))
    columns = duration[order].tolist(), delay[order].tolist(), last_held[order].tolist()
    for i, before, source, takes, travels, holds in zip(graph.pass_order_list, graph.pass_before, graph.pass_source, *columns, strict=True):
        begin = free[before]
        arrival = end[source] + travels
        if arrival > begin:
            begin = arrival
        start[i] = begin
        end[i] = finish = begin + takes
        free[i] = finish + holds
    starts, ends = np.array(start), np.array(end[:count])
    pairs = np.flatnonzero(second)
    starts[pairs], ends[pairs] = starts[pairs - 1], ends[pairs - 1]
    return starts, ends
