"""The timeline of a plan: its schedule, with the durations that the ledger's prices give."""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from meshwright.boundaries import between_chunks_s
from meshwright.chunk_time import chunk_times, paired_savings_s
from meshwright.schedule import PassTimes, build
from meshwright.timeline.costs import Costs, uniform_costs
from meshwright.timeline.events import Timeline
from meshwright.timeline.simulate import simulate

if TYPE_CHECKING:
    from meshwright.priced import Priced
    from meshwright.schedule import Schedule

__all__ = ["plan_costs", "plan_schedule", "plan_timeline"]


SMALL = 20_000
"""Forwards of a schedule of which many may be kept: with their backwards some 10 MB."""

_built_small, _built_large = lru_cache(maxsize=64)(build), lru_cache(maxsize=4)(build)
"""Finalists of one search, and estimates one after the other, often share a schedule; the largest lists take tens of MB each."""


def plan_timeline(priced: Priced) -> Timeline:
    """One step's pipeline of one layout (not an array of them); p = 1 is a rank that never waits."""
    schedule = plan_schedule(priced)
    return simulate(schedule, plan_costs(priced, schedule))


def plan_schedule(priced: Priced) -> Schedule:
    """The layout's schedule. The automatic ones (zb-1p, zb-2p) are made for this plan's durations, the mean of its stages, as in
    the paper's experiments (arXiv 2401.10241 Table 5 has one F, B and W for all stages).

    Raises:
        InputError: a number of micro-batches that the schedule cannot take.
    """
    layout, m = priced.ledger.layout, int(priced.ledger.micro_batches)
    times = None
    if layout.schedule in ("zb-1p", "zb-2p"):
        chunks = chunk_times(priced)
        times = PassTimes(
            fmean(float(time.forward_s) for time in chunks),
            fmean(float(time.backward_input_s) for time in chunks),
            fmean(float(time.backward_weight_s) for time in chunks),
            fmean(_messages_s(priced, 1)),
            weight_share(priced),
        )
    make = _built_small if layout.pp * layout.virtual_stages * m <= SMALL else _built_large
    return make(layout.schedule, layout.pp, layout.virtual_stages, m, times)


def weight_share(priced: Priced) -> float:
    """The part of a layer's saved activations that weight halves need: the inputs of its products.

    arXiv 2401.10241 Table 1, in words per token (their h, a, s = our D, N, S): 32 h of 34 h, and of 34 h + 5 a s where the attention
    scores are saved. It decides how far a schedule may put weight halves off, never what memory is counted.
    """
    ledger = priced.ledger
    hidden, heads, seq = ledger.model.hidden_size, ledger.model.attention.num_heads, ledger.workload.seq
    scores = 5 * heads * seq if "scores" in ledger.stack.saves else 0
    return 32 * hidden / (34 * hidden + scores)


def plan_costs(priced: Priced, schedule: Schedule) -> Costs:
    """Seconds of each chunk's passes, the collectives that compute cannot hide included, and of a message between stages."""
    chunks = chunk_times(priced)
    return uniform_costs(
        schedule,
        np.array([float(time.forward_s) for time in chunks]),
        np.array([float(time.backward_input_s) for time in chunks]),
        np.array([float(time.backward_weight_s) for time in chunks]),
        np.array([*_messages_s(priced, schedule.copies), 0.0]),
        np.array([float(saving) for saving in paired_savings_s(priced, chunks)]),
        overlap=priced.ledger.stack.hides_pipeline,
    )


def _messages_s(priced: Priced, copies: int) -> list[float]:
    """The message over the boundary behind each chunk but the last, of all copies."""
    chunks = copies * len(priced.ledger.pipeline.chunks)
    if priced.ledger.layout.pp == 1:
        return [0.0] * (chunks - 1)
    between: list[float] = np.broadcast_to(between_chunks_s(priced, copies), (chunks - 1,)).tolist()
    return between
