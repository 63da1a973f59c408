"""How many bytes each block's forward leaves for its backward: the storages that autograd keeps, each counted once.

    with measured(parameters) as found:
        loss = model(...)
    found  # {"embedding": 512, "layers.0": 20480, ...}

A storage belongs to the block that keeps it first. Parameters are left out: they are there anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.runtime import scope
from meshwright.spec import names

HEAD_MODULES = (names.NORM, names.HEAD, names.LOSS)
"""They are one block in the ledger's account of a model: what comes after the last layer."""


class _Meter:
    def __init__(self, parameters: Iterable[Tensor]) -> None:
        # zero=3 holds shards here, which nothing keeps: what it gathers is known in ``add``
        self._parameters = {_storage(parameter) for parameter in parameters if not isinstance(parameter, DTensor)}
        self._seen: dict[int, Tensor] = {}  # kept alive, so that an address is not used twice
        self.found: dict[str, int] = {}

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        self._parameters |= {_storage(tensor) for tensor in tensors if not isinstance(tensor, DTensor)}

    def add(self, tensor: Tensor) -> None:
        address = _storage(tensor)
        # zero=3 gathers parameters into new storages, also of which a view may be kept
        parameter = isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)
        if parameter or address in self._parameters or address in self._seen:
            return
        self._seen[address] = tensor
        block = block_of(scope.current().module)
        self.found[block] = self.found.get(block, 0) + tensor.untyped_storage().nbytes()


_meter: ContextVar[_Meter | None] = ContextVar("meter", default=None)


@contextmanager
def measured(parameters: Iterable[Tensor]) -> Iterator[dict[str, int]]:
    """Bytes by block (see block_of) of what the forward inside the ``with`` keeps."""
    meter = _Meter(parameters)
    token = _meter.set(meter)

    def pack(tensor: Tensor) -> Tensor:
        meter.add(tensor)
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield meter.found
    finally:
        _meter.reset(token)


def leave_out(parameters: Iterable[Tensor]) -> None:
    """Parameters that have got their storage inside the ``with`` (zero=3 gathers them)."""
    meter = _meter.get()
    if meter is not None:
        meter.leave_out(parameters)


def note(kept: Any) -> None:
    """Count tensors that are kept by other means than autograd's (a recomputed block's inputs)."""
    meter = _meter.get()
    if meter is not None:
        for value in kept:
            if isinstance(value, Tensor):
                meter.add(value)


def block_of(module: str) -> str:
    """``layers.3.attention.qkv`` -> ``layers.3``; norm, head and loss -> ``head``; else the first word."""
    first, _, rest = module.partition(".")
    if first == "layers":
        return f"layers.{rest.partition('.')[0]}"
    return names.HEAD if first in HEAD_MODULES else names.EMBEDDING if first in (names.POSITIONS, names.EMBEDDING_NORM) else first


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # the address of a storage without memory (fake tensors) is 0
