"""The collective between how a tensor is held and how the next operation wants it (DESIGN principle 4).

    {+a}      -> nothing of a    all_reduce(a)
    {+a}      -> dim/a           reduce_scatter(a)
    dim/a     -> dim             all_gather(a)
    dim1/a    -> dim2/a          all_to_all(a)
    dim       -> dim/a           a local slice, nothing is sent

One axis moves at a time; a pair that needs two collectives is two rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from meshwright.notation import Sharded

CollectiveOp = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "slice"]


@dataclass(frozen=True, slots=True)
class Redistribution:
    """What turns one sharding into another: the op, the axis it runs over, and the dim it cuts or joins."""

    op: CollectiveOp
    axis: str
    dim: int | None
    why: str


@lru_cache(maxsize=4096)
def redistribute(held: Sharded, wanted: Sharded) -> Redistribution | None:
    """The collective between two shardings of one tensor, None where they are the same.

    Raises:
        ValueError: other dims or dtype, a sum that appears from nowhere, or more than one axis that moves.
    """
    if held.dtype != wanted.dtype or [d.letter for d in held.dims] != [d.letter for d in wanted.dims]:
        raise ValueError(f"{held} and {wanted} are not shardings of one tensor")
    axes = {a for t in (held, wanted) for d in t.dims for a in d.axes} | {*held.partial, *wanted.partial}
    moves = [move for axis in sorted(axes) if (move := _move(held, wanted, axis)) is not None]
    if len(moves) > 1:
        raise ValueError(f"{held} -> {wanted} moves {len(moves)} axes ({', '.join(m.axis for m in moves)}); say the steps")
    return moves[0] if moves else None


def _move(held: Sharded, wanted: Sharded, axis: str) -> Redistribution | None:
    before, after = held.axes_of(axis), wanted.axes_of(axis)
    summed, still = axis in held.partial, axis in wanted.partial
    if still and not summed:
        raise ValueError(f"{held} -> {wanted}: nothing makes a partial sum over {axis} out of a whole tensor")
    if summed and still:
        return None
    if summed and after is None:
        return Redistribution("all_reduce", axis, None, f"each {axis} rank holds one summand, and all of them want the sum")
    if summed:
        return Redistribution("reduce_scatter", axis, after, f"each {axis} rank holds one summand and wants its shard of the sum")
    if before == after:
        return None
    if after is None:
        return Redistribution("all_gather", axis, before, f"each {axis} rank holds a shard and wants the whole")
    if before is None:
        return Redistribution("slice", axis, after, f"each {axis} rank keeps its shard of what it has whole")
    return Redistribution("all_to_all", axis, after, f"the cut over {axis} moves from dim {before} to dim {after}")
