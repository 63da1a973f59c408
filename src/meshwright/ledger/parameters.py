"""Parameters as one rank holds them: local rows and columns under tp, ep and etp, and sums over a unit.

A unit is what data parallelism moves at once: one per layer, and a root (embedding, final norm, head). Under ZeRO each
parameter is cut on dim 0 over the group and padded there, as FSDP2 does: 50 x 8 on 3 ranks counts 51 rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.arithmetic import Num, ceil_div
from meshwright.ledger.sizes import Sizes
from meshwright.spec.parameters import Parameter

EXPERT_CUTS = ("expert_rows", "expert_columns", "expert_whole")


def is_expert(parameter: Parameter) -> bool:
    """Whether the parameter lives on the expert fold (ep, etp, edp) instead of (tp, dp, cp)."""
    return parameter.cut in EXPERT_CUTS


class Local(NamedTuple):
    """A parameter as one rank holds it before ZeRO: dim 0, and the rest."""

    parameter: Parameter
    rows: Num
    columns: Num


def local(parameter: Parameter, s: Sizes) -> Local:
    """Cut by tp, ep and etp."""
    shape, cut = parameter.shape, parameter.cut
    columns: Num = shape[1] if len(shape) == 2 else 1
    if cut == "qkv":
        return Local(parameter, (s.heads + 2 * s.kv_heads) * s.model.attention.head_dim, columns)
    if cut == "vocab":
        return Local(parameter, s.vocab, columns)
    of_rows, of_columns = s.cuts[cut]
    return Local(parameter, shape[0] // of_rows, columns // of_columns)


def held_numel(parameters: Iterable[Local]) -> Num:
    """Elements that one rank holds of these parameters, before ZeRO."""
    total: Num = 0
    for _, rows, columns in parameters:
        total = total + rows * columns
    return total


def shard_numel(parameters: Iterable[Local], ranks: Num) -> Num:
    """Elements of one rank's shard when each parameter is cut on dim 0 over ``ranks``, padding included."""
    total: Num = 0
    for _, rows, columns in parameters:
        total = total + ceil_div(rows, ranks) * columns
    return total


def partial_over_tp(parameters: Iterable[Local], s: Sizes) -> list[Local]:
    """Parameters that every tp rank holds whole, with a gradient that is only a summand on each.

    With sp: all whole ones (each rank saw its tokens), and embedding and head where the vocabulary is not cut. Without sp:
    those whose gradient sums over the rank's heads.
    """
    if s.layout.sp:
        whole = ("whole",) if s.layout.vocab else ("whole", "vocab")
        return [held for held in parameters if held.parameter.cut in whole]
    return [held for held in parameters if held.parameter.by_head]


def replicated_kv_numel(parameters: Iterable[Local], s: Sizes) -> Num:
    """Elements of the key and value rows that several tp ranks hold copies of (K < tp)."""
    total: Num = 0
    for parameter, _, columns in parameters:
        if parameter.cut == "qkv":
            total = total + 2 * s.kv_heads * s.model.attention.head_dim * columns
    return total
