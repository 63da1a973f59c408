"""Parameters as one rank holds them: local rows and columns under tp, ep and etp, and sums over a unit.

A unit is what data parallelism moves at once: one per layer, and a root (embedding, final norm, head). Under ZeRO each
parameter is cut on dim 0 over the group and padded there, as FSDP2 does: 50 x 8 on 3 ranks counts 51 rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshwright.arithmetic import Num, ceil_div
from meshwright.ledger.sizes import Sizes
from meshwright.spec.parameters import Parameter

EXPERT_CUTS = ("expert_rows", "expert_columns", "expert_whole")


def is_expert(parameter: Parameter) -> bool:
    """Whether the parameter lives on the expert fold (ep, etp, edp) instead of (tp, dp, cp)."""
    return parameter.cut in EXPERT_CUTS


def local_rows_columns(parameter: Parameter, s: Sizes) -> tuple[Num, Num]:
    """(dim 0, the rest) of what one rank holds before ZeRO."""
    layout, shape = s.layout, parameter.shape
    rows: Num = shape[0]
    columns: Num = shape[1] if len(shape) == 2 else 1
    match parameter.cut:
        case "rows":
            rows = rows // layout.tp
        case "columns":
            columns = columns // layout.tp
        case "qkv":
            rows = (s.heads + 2 * s.kv_heads) * s.model.attention.head_dim
        case "vocab":
            rows = s.vocab
        case "expert_rows":
            rows = rows // (layout.ep * layout.etp)
        case "expert_columns":
            rows, columns = rows // layout.ep, columns // layout.etp
        case "expert_whole":
            rows = rows // layout.ep
    return rows, columns


def held_numel(parameters: Iterable[Parameter], s: Sizes) -> Num:
    """Elements that one rank holds of these parameters, before ZeRO."""
    total: Num = 0
    for parameter in parameters:
        rows, columns = local_rows_columns(parameter, s)
        total = total + rows * columns
    return total


def shard_numel(parameters: Iterable[Parameter], s: Sizes, ranks: Any) -> Num:
    """Elements of one rank's shard when each parameter is cut on dim 0 over ``ranks``, padding included."""
    total: Num = 0
    for parameter in parameters:
        rows, columns = local_rows_columns(parameter, s)
        total = total + ceil_div(rows, ranks) * columns
    return total


def partial_over_tp(parameters: Iterable[Parameter], s: Sizes) -> list[Parameter]:
    """Parameters that every tp rank holds whole, with a gradient that is only a summand on each.

    With sp: all whole ones (each rank saw its tokens), and embedding and head where the vocabulary is not cut. Without sp:
    those whose gradient sums over the rank's heads.
    """
    if s.layout.sp:
        whole = ("whole",) if s.layout.vocab else ("whole", "vocab")
        return [p for p in parameters if p.trained and p.cut in whole]
    return [p for p in parameters if p.trained and p.by_head]


def replicated_kv_numel(parameters: Iterable[Parameter], s: Sizes) -> Num:
    """Elements of the key and value rows that several tp ranks hold copies of (K < tp)."""
    total: Num = 0
    for parameter in parameters:
        if parameter.cut == "qkv":
            _, columns = local_rows_columns(parameter, s)
            total = total + 2 * s.kv_heads * s.model.attention.head_dim * columns
    return total
