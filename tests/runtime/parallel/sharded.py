"""What the rank functions of these tests share: groups of a layout, recording, and comparison with one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.mesh import Mesh
from meshwright.recording.events import Event
from meshwright.runtime.groups import ProcessGroups, make_groups
from meshwright.runtime.recorder import Collected, Recorder
from meshwright.runtime.scope import at
from meshwright.spec.layout import Layout

TOLERANCE = 1e-12
"""Relative to the largest entry: sums of float64 in another order differ by 1e-15 or so; a missing summand by far more."""

Fact = tuple[str, str, str, str, str, int]
"""phase, axis, op, reduce op, dtype, payload bytes."""


def groups_of(layout: Layout, kv_heads: int | None = None) -> ProcessGroups:
    return make_groups(Mesh(layout, kv_heads), dist.get_rank(), timeout_s=60)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def close(actual: Tensor | None, expected: Tensor | None) -> None:
    assert actual is not None and expected is not None
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    scale = max(float(expected.detach().abs().max()), 1e-3) if expected.numel() else 1.0
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=0.0, atol=TOLERANCE * scale)


def recorded(
    groups: ProcessGroups, forward: Callable[[], Tensor], upstream: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, list[Event]]:
    """Run forward, and backward from ``upstream(result)`` (ones if None), under the recorder."""
    collected = Collected()
    with Recorder(collected, groups.recorded()):
        with at(phase="forward"):
            result = forward()
        with at(phase="backward_input"):
            result.backward(torch.ones_like(result) if upstream is None else upstream(result))
    return result, collected.events


def facts(events: Sequence[Event]) -> list[Fact]:
    return [(e.phase, e.group.split(".")[0], e.op, e.reduce_op, e.dtype, e.payload_bytes) for e in events]


def part(x: Tensor, axis: Any, dim: int) -> Tensor:
    return x.chunk(axis.size, dim)[axis.place]
