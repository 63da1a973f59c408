"""Recomputation: forget a block's activations in forward and make them again in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")


def recomputed(function: Callable[..., Result], *args: Any) -> Result:
    """``function(*args)``, of whose activations only the tensors in ``args`` are kept.

    The second run stops at the last tensor that backward needs, so a collective after that (the reduction behind the last matrix) is
    not sent again. Random state is not saved: our dropout masks depend on none.
    """
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
