"""Messages between the stages of a pipeline: neighbours may share a node or not, so each boundary has its own price.

A *hop* is the step from one place of the pipeline to the next; the last one is the way back to the first, which interleaving takes
(collectives/fabric.py). Where all hops are alike there is one number instead of one for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.arithmetic import Num
from meshwright.ledger import step

if TYPE_CHECKING:
    from meshwright.ledger.build import Stage
    from meshwright.priced import Priced

__all__ = ["alike", "between_chunks_s", "message_s", "representatives", "sent_s"]


def alike(priced: Priced) -> bool:
    """Whether all boundaries of the pipeline cross the same tier, whatever the other degrees are."""
    return len(priced.fabric.hops) == 1


def message_s(priced: Priced) -> Num:
    """Seconds of one message; where boundaries are not alike, an array with a row for each hop: priced by tier, then chosen."""
    row = step.boundary(priced.ledger.sizes, "forward", 0, 1)[0]
    if alike(priced):
        return row.times * priced.row_s(row)
    by_tier = [row.times * priced.hop_s(tier, row.payload_bytes) for tier in range(len(priced.cluster.tiers))]
    if isinstance(row.payload_bytes, int) and all(isinstance(tier, int) for tier in priced.fabric.hops):
        return np.array([by_tier[tier] for tier in priced.fabric.hops])
    one_for_each = np.shape(priced.ledger.layout.world_size)
    return np.stack([np.broadcast_to(np.choose(tier, by_tier), one_for_each) for tier in priced.fabric.hops])


def between_chunks_s(priced: Priced, copies: int = 1) -> Num:
    """A message over the boundary behind each chunk but the last, of so many copies, the boundary in front; one number where alike."""
    pipeline = priced.ledger.pipeline
    return priced.boundary_s if alike(priced) else priced.boundary_s[list(pipeline.hops[: copies * len(pipeline.chunks) - 1])]


def sent_s(priced: Priced, stage: Stage) -> Num:
    """What a stage sends for one micro-batch, there and back, where it is held meanwhile."""
    received, sent = stage.boundaries()
    if alike(priced):
        return (received + sent) * priced.boundary_s
    seconds: Num = 0.0
    there, back = priced.ledger.pipeline.hops_of(stage.index)
    for hop in there + back:
        seconds = seconds + priced.boundary_s[hop]
    return seconds


def representatives(priced: Priced) -> tuple[tuple[int, int], ...]:
    """(first stage, number of stages) of each composition, neighbours included: where boundaries are not alike, of one each."""
    pipeline = priced.ledger.pipeline
    return pipeline.representatives if alike(priced) else tuple((index, 1) for index in range(len(pipeline.stages)))
