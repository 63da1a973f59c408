"""Bytes that stay on a rank from step to step: parameters (of zero=3 the shards) and what the optimizer keeps for them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.runtime.train_step import Training

WEIGHTS, OPTIMIZER = "weights", "optimizer"


def resident_bytes(training: Training) -> dict[str, int]:
    """By category, distinct storages counted once: a master that is the weight itself is a weight.

    Counters of steps, one scalar for each parameter, are left out.
    """
    seen: set[int] = set()
    weights = _add(training.part.parameters(), seen)
    moments = (tensor for state in training.optimizer.states() for tensor in state.values() if tensor.ndim)
    return {WEIGHTS: weights, OPTIMIZER: _add([*training.optimizer.master, *moments], seen)}


def _add(tensors: Iterable[Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        storage = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total
