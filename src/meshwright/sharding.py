"""The collective between how a tensor is held and how the next operation wants it (DESIGN principle 4).

    {+a}      -> nothing of a    all_reduce(a)
    {+a}      -> dim/a           reduce_scatter(a)
    dim/a     -> dim             all_gather(a)
    dim1/a    -> dim2/a          all_to_all(a)
    dim       -> dim/a           a local slice, nothing is sent

One axis moves at a time; a pair that needs two collectives is two rows. A collective over axis a joins what neighbours on a
hold, so a must be the innermost cut of its dim: S/(cp,tp) -> S/cp is a gather, S/(cp,tp) -> S/tp is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from meshwright.notation import Dim, Sharded

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
        ValueError: other dims or dtype, a sum that appears from nowhere, more than one axis that moves, or a cut that moves from under
            another one.
    """
    if held.dtype != wanted.dtype or [d.letter for d in held.dims] != [d.letter for d in wanted.dims]:
        raise ValueError(f"{held} and {wanted} are not shardings of one tensor")
    axes = {a for t in (held, wanted) for d in t.dims for a in d.axes} | {*held.partial, *wanted.partial}
    moves = [move for axis in sorted(axes) if (move := _move(held, wanted, axis)) is not None]
    if len(moves) > 1:
        raise ValueError(f"{held} -> {wanted} moves {len(moves)} axes ({', '.join(m.axis for m in moves)}); say the steps")
    move = moves[0] if moves else None
    if not all(_stays_in_order(before, after, move.axis if move else "") for before, after in zip(held.dims, wanted.dims, strict=True)):
        raise ValueError(f"{held} -> {wanted} changes a cut that is not the innermost of its dim")
    return move


def _stays_in_order(before: Dim, after: Dim, moved: str) -> bool:
    """Whether the cuts of a dim stay as they are but for the one over ``moved``, which is innermost."""
    rest = [tuple(axis for axis in dim.axes if axis != moved) for dim in (before, after)]
    return rest[0] == rest[1] and all(moved not in dim.axes[:-1] for dim in (before, after))


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
