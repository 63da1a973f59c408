"""Recomputation: forget a block's activations in forward and make them again in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.checkpoint import checkpoint

from meshwright.runtime import saved_bytes, scope

Result = TypeVar("Result")


def recomputed(function: Callable[..., Result], *args: Any) -> Result:
    """``function(*args)``, of whose activations only the tensors in ``args`` are kept.

    The second run stops at the last tensor that backward needs, so a collective after that (the reduction behind the last matrix) is
    not sent again. What it sends is stamped with the phase ``recompute``. Random state is not saved: our dropout masks depend on none.
    """
    first = scope.current()
    runs = 0

    def run(*inputs: Any) -> Result:
        nonlocal runs
        runs += 1
        if runs == 1:
            return function(*inputs)
        with scope.at(phase="recompute", module=first.module, micro_batch=first.micro_batch, chunk=first.chunk):
            return function(*inputs)

    saved_bytes.note(args)
    return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False)
