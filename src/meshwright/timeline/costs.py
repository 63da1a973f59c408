"""How long each computation and message of a pipeline takes: what the simulator is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from meshwright.schedule.actions import Schedule

__all__ = ["Costs", "uniform_costs"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Durations in seconds, for each chunk of the schedule, or each chunk and micro-batch.

    Attributes:
        forward_s: shape [chunks] or [chunks, m].
        backward_input_s: the gradient with respect to the chunk's input; same shapes. A whole backward takes
            ``backward_input_s + backward_weight_s``.
        backward_weight_s: the gradient with respect to the chunk's weights; same shapes.
        forward_transfer_s: shape [chunks]: from chunk c to chunk c + 1. A boundary inside one rank costs nothing, whatever
            is said here; nor does the last chunk's.
        backward_transfer_s: shape [chunks]: from chunk c to chunk c - 1.
        paired_saving_s: shape [chunks]: what is saved when a forward of chunk c runs as one computation with a backward
            (DualPipe: F + B - F&B).
        overlap: messages travel while their sender computes on; without it the sender is held until they have arrived.
    """

    forward_s: Array
    backward_input_s: Array
    backward_weight_s: Array
    forward_transfer_s: Array
    backward_transfer_s: Array
    paired_saving_s: Array
    overlap: bool = True


def uniform_costs(
    schedule: Schedule,
    forward_s: float | npt.ArrayLike = 1.0,
    backward_input_s: float | npt.ArrayLike = 1.0,
    backward_weight_s: float | npt.ArrayLike = 1.0,
    transfer_s: float | npt.ArrayLike = 0.0,
    paired_saving_s: float | npt.ArrayLike = 0.0,
    overlap: bool = True,
) -> Costs:
    """Costs of a schedule from one number for all chunks, or one per *stage* of the model (both copies alike).

    ``transfer_s`` is that of a boundary and holds for both directions: entry s is the boundary behind stage s.
    """
    copies, chunks = schedule.copies, schedule.num_chunks

    def per_chunk(value: float | npt.ArrayLike) -> Array:
        array = np.asarray(value, dtype=np.float64)
        if array.ndim == 0:
            return np.full(chunks, array)
        return np.concatenate([array] * copies) if len(array) != chunks else array

    boundary = per_chunk(transfer_s)
    return Costs(
        forward_s=per_chunk(forward_s),
        backward_input_s=per_chunk(backward_input_s),
        backward_weight_s=per_chunk(backward_weight_s),
        forward_transfer_s=boundary,
        backward_transfer_s=np.roll(boundary, 1),
        paired_saving_s=per_chunk(paired_saving_s),
        overlap=overlap,
    )
