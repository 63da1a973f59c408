"""Gradients of parameters that two pipeline ranks hold: a table that both ends need, and DualPipe's two copies of every stage."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.runtime import scope
from meshwright.runtime.data_parallel.packing import pack_own, padded_views
from meshwright.runtime.data_parallel.shares import Share, by_unit
from meshwright.runtime.data_parallel.units import ROOT
from meshwright.runtime.groups import Axis
from meshwright.runtime.parallel.comm import all_reduce
from meshwright.spec import names

scope.transparent(__file__)

TABLE = f"{names.EMBEDDING}.weight"


def sum_shared_table(shares: Sequence[Share], ends: Axis) -> None:
    """A tied head, or multi-token prediction, has the embedding's table at the last stage too: one all_reduce of its gradient over both
    ends, of the shards under ZeRO."""
    for share in shares:
        if share.unit == ROOT and share.held.name == TABLE:
            with scope.at(phase="reduce", module=names.EMBEDDING):
                _sum([share], ends)


def sum_mirrored(shares: Sequence[Share], mirror: Axis) -> None:
    """DualPipe: ranks i and p-1-i hold the same stages, one for each direction: one all_reduce per unit."""
    for unit, members in by_unit(shares).items():
        with scope.at(phase="reduce", module=names.GRADIENTS if unit == ROOT else f"{unit}.{names.GRADIENTS}"):
            _sum(members, mirror)


def _sum(shares: Sequence[Share], axis: Axis) -> None:
    """Dense and expert parameters are cut over different numbers of ranks, so each is packed by its own."""
    packed: list[Tensor] = []
    parts = [[share for share in shares if share.held.expert == expert] for expert in (False, True)]
    for part in filter(None, parts):
        wholes = [share.whole for share in part]
        packed.append(pack_own([share.gradient for share in part], wholes, part[0].ranks, part[0].gradient.dtype))
    total = all_reduce(torch.cat(packed), axis)
    for part, own in zip(filter(None, parts), total.split([one.numel() for one in packed]), strict=True):
        for share, view in zip(part, padded_views(own, [share.whole for share in part], part[0].ranks), strict=True):
            share.gradient.copy_(view[: share.gradient.shape[0]])
