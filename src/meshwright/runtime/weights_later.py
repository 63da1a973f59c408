"""Weight gradients that are put off: the W of zero-bubble schedules (arXiv 2401.10241, section 2).

    with putting_off(pass_):          # around a forward whose backward will be halved
        y = column_linear(x, weight, ...)
    y.backward(...)                   # the input half: gradients of x; the linear layers leave theirs with ``pass_``
    pass_.run()                       # the weight half

Only matrices are put off, with the biases that belong to them. Gradients of norms, sinks and tables are sums over what is at hand, and
come with the input half. A linear layer that puts off sees its weight detached: autograd knows of no way to it, and nothing that hooks
the way (a sum over kv copies) runs before its gradient is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

Gradients = Callable[[], tuple[Tensor, ...]]


@dataclass
class WeightHalf:
    """The weight half of one backward: parameters with what computes their gradients, in the order of the input half."""

    jobs: list[tuple[tuple[Tensor, ...], Gradients]] = field(default_factory=list)

    def run(self) -> None:
        """Compute all gradients and accumulate them; what was kept for one is freed with it."""
        jobs, self.jobs = self.jobs[::-1], []
        while jobs:
            parameters, gradients = jobs.pop()
            with torch.no_grad():
                found = gradients()
            torch.autograd.backward(parameters, found)


@dataclass(frozen=True)
class PutOff:
    """What one linear layer does in its backward: ``gradients`` later, for ``parameters``."""

    half: WeightHalf
    parameters: tuple[Tensor, ...]

    def leave(self, gradients: Gradients) -> None:
        self.half.jobs.append((self.parameters, gradients))


_half: ContextVar[WeightHalf | None] = ContextVar("weight_half", default=None)


@contextmanager
def putting_off(half: WeightHalf | None) -> Iterator[None]:
    """Linear layers that run forward inside the ``with`` leave their weights' gradients with ``half``; None: they do not."""
    token = _half.set(half)
    try:
        yield
    finally:
        _half.reset(token)


def put_off(*parameters: Tensor | None) -> PutOff | None:
    """For a linear layer's forward: where to leave the gradients of these; None where nothing is put off."""
    half = _half.get()
    return None if half is None else PutOff(half, tuple(parameter for parameter in parameters if parameter is not None))


def seen(parameter: Tensor, later: PutOff | None) -> Tensor:
    """The parameter as autograd is to see it."""
    return parameter if later is None else parameter.detach()
