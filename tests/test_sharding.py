"""The collective between two shardings, executed in numpy on "ranks" that are entries of a dict, gives the wanted shards.

A mesh has degrees for a few axes; a rank is its coordinates. ``shard`` cuts a whole tensor as the notation says, and ``run`` does what a
collective of that name does in torch.distributed, on the arrays of one group.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.columns import WORKLOAD, random_column
from ledger.models import SMALL
from ledger.sums import rank_rows
from meshwright.ledger.build import build
from meshwright.notation import Dim, Sharded, parse
from meshwright.sharding import Redistribution, redistribute
from meshwright.spec.model import Model

Rank = tuple[int, ...]
Array = npt.NDArray[np.int64]
Degrees = dict[str, int]

DEGREES: Degrees = {"tp": 2, "cp": 3, "dp": 2}


def ranks(degrees: Degrees) -> Iterator[Rank]:
    return product(*(range(degree) for degree in degrees.values()))


def place(rank: Rank, degrees: Degrees, axis: str) -> int:
    return rank[list(degrees).index(axis)]


def shard(whole: Array, tensor: Sharded, rank: Rank, degrees: Degrees) -> Array:
    """The block of ``whole`` that a rank holds: each dim is cut by its axes one after the other, slowest first."""
    for index, dim in enumerate(tensor.dims):
        for axis in dim.axes:
            whole = np.split(whole, degrees[axis], axis=index)[place(rank, degrees, axis)]
    return whole


def hold(whole: Array, tensor: Sharded, degrees: Degrees, rng: np.random.Generator) -> dict[Rank, Array]:
    """What every rank holds; of a partial sum, one summand for each place on the axes that are to be summed."""
    places = list(product(*(range(degrees[axis]) for axis in tensor.partial)))
    summands = {key: rng.integers(-9, 9, whole.shape) for key in places}
    summands[places[0]] += whole - sum(summands.values())
    return {
        rank: shard(summands[tuple(place(rank, degrees, axis) for axis in tensor.partial)], tensor, rank, degrees)
        for rank in ranks(degrees)
    }


def run(move: Redistribution | None, held: dict[Rank, Array], degrees: Degrees, before: Sharded) -> dict[Rank, Array]:
    """Every group of the move's axis executes it."""
    if move is None:
        return held
    index = list(degrees).index(move.axis)
    result: dict[Rank, Array] = {}
    for rank in held:
        group = [held[(*rank[:index], member, *rank[index + 1 :])] for member in range(degrees[move.axis])]
        result[rank] = _collective(move, group, rank[index], before)
    return result


def _collective(move: Redistribution, group: list[Array], own: int, before: Sharded) -> Array:
    n, dim = len(group), move.dim or 0
    if move.op == "all_reduce":
        return np.sum(group, axis=0)
    if move.op == "reduce_scatter":
        return np.split(np.sum(group, axis=0), n, axis=dim)[own]
    if move.op == "all_gather":
        return np.concatenate(group, axis=dim)
    if move.op == "slice":
        return np.split(group[own], n, axis=dim)[own]
    joined = before.axes_of(move.axis)
    assert move.op == "all_to_all"
    assert joined is not None
    return np.concatenate([np.split(member, n, axis=dim)[own] for member in group], axis=joined)


def check(before: Sharded, after: Sharded, degrees: Degrees) -> Redistribution | None:
    """The derived collective turns every rank's shard into the wanted one."""
    rng = np.random.default_rng(0)
    size = 2 * int(np.prod(list(degrees.values())))
    whole = rng.integers(-100, 100, (size,) * len(before.dims))
    move = redistribute(before, after)
    still = dict.fromkeys(after.partial, 1)  # what stays a sum is compared after summing it
    found = run(move, hold(whole, before, degrees, rng), degrees, before)
    for axis in still:
        found = run(Redistribution("all_reduce", axis, None, ""), found, degrees, before)
    for rank, array in found.items():
        np.testing.assert_array_equal(array, shard(whole, after, rank, degrees))
    return move


MOVES = {
    "bf16[B, S, D]{+tp} -> bf16[B, S, D]": ("all_reduce", None),
    "bf16[B, S, D]{+tp} -> bf16[B, S/tp, D]": ("reduce_scatter", 1),
    "bf16[B, S/cp, D]{+tp} -> bf16[B, S/(cp,tp), D]": ("reduce_scatter", 1),
    "bf16[B, S/tp, D] -> bf16[B, S, D]": ("all_gather", 1),
    "bf16[B/dp, S/(cp,tp), D] -> bf16[B/dp, S/cp, D]": ("all_gather", 1),
    "bf16[S/tp, N, H] -> bf16[S, N/tp, H]": ("all_to_all", 1),
    "bf16[S/(cp,tp), N] -> bf16[S/cp, N/tp]": ("all_to_all", 1),
    "bf16[S, N/tp] -> bf16[S/tp, N]": ("all_to_all", 0),
    "bf16[B, S, D] -> bf16[B, S/tp, D]": ("slice", 1),
    "bf16[B, S/cp, D] -> bf16[B, S/(cp,tp), D]": ("slice", 1),
    "bf16[B, S/cp]{+dp}{+tp} -> bf16[B, S/cp]{+dp}": ("all_reduce", None),
    "bf16[B, S/cp]{+dp}{+tp} -> bf16[B/tp, S/cp]{+dp}": ("reduce_scatter", 0),
}


@pytest.mark.parametrize("text", MOVES)
def test_every_move(text: str) -> None:
    before, after = map(parse, text.split(" -> "))
    move = check(before, after, DEGREES)
    assert move is not None
    assert (move.op, move.dim) == MOVES[text]
    assert move.axis == "tp"


def test_equal_shardings_need_nothing() -> None:
    tensor = parse("bf16[B/dp, S/(cp,tp), D]")
    assert check(tensor, tensor, DEGREES) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bf16[B, S] -> bf16[S, B]", "not shardings of one tensor"),
        ("bf16[B, S] -> bf16[B]", "not shardings of one tensor"),
        ("bf16[B, S] -> float32[B, S]", "not shardings of one tensor"),
        ("bf16[B, S] -> bf16[B, S]{+tp}", "nothing makes a partial sum over tp"),
        ("bf16[B/tp, S] -> bf16[B, S]{+tp}", "nothing makes a partial sum over tp"),
        ("bf16[B/dp, S/tp] -> bf16[B, S]", "moves 2 axes"),
        ("bf16[B, S]{+tp}{+cp} -> bf16[B, S]", "moves 2 axes"),
        ("bf16[B, S/tp]{+cp} -> bf16[B, S/cp]", "moves 2 axes"),
        ("bf16[B, S/(cp,tp)] -> bf16[B, S/tp]", "not the innermost"),
        ("bf16[B, S/tp] -> bf16[B, S/(cp,tp)]", "not the innermost"),
        ("bf16[B, S/tp]{+cp} -> bf16[B, S/(cp,tp)]", "not the innermost"),
        ("bf16[B, S/(cp,tp)] -> bf16[B, S/(tp,cp)]", "not the innermost"),
        ("bf16[B/(cp,tp), S] -> bf16[B/tp, S/cp]", "not the innermost"),
    ],
)
def test_what_no_single_collective_does_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        redistribute(*map(parse, text.split(" -> ")))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Sharded, Sharded]:
    """Two shardings of one tensor of three dims over the axes of DEGREES."""
    return _sharded(draw), _sharded(draw)


def _sharded(draw: st.DrawFn) -> Sharded:
    cuts: list[list[str]] = [[], [], []]
    partial: list[str] = []
    for axis in draw(st.permutations(list(DEGREES))):
        where = draw(st.sampled_from([0, 1, 2, None, "sum"]))
        if where == "sum":
            partial.append(axis)
        elif isinstance(where, int):
            cuts[where].append(axis)
    return Sharded("bf16", tuple(Dim(letter, tuple(axes)) for letter, axes in zip("BSD", cuts, strict=True)), tuple(partial))


@given(pairs())
def test_what_is_not_refused_is_right(pair: tuple[Sharded, Sharded]) -> None:
    before, after = pair
    try:
        redistribute(before, after)
    except ValueError:
        return
    check(before, after, DEGREES)


@given(pairs())
def test_shards_tile_the_tensor(pair: tuple[Sharded, Sharded]) -> None:
    """Every element is in as many shards as there are ranks that do not cut it, and in no more."""
    tensor, degrees = pair[0], DEGREES
    whole = np.arange(12**3).reshape(12, 12, 12)
    seen = np.zeros(whole.size, dtype=np.int64)
    for rank in ranks(degrees):
        seen[shard(whole, tensor, rank, degrees).ravel()] += 1
    copies = int(np.prod([degree for axis, degree in degrees.items() if tensor.axes_of(axis) is None]))
    assert (seen == copies).all()


@given(st.sampled_from(SMALL), st.integers(0, 2**32))
def test_the_ledgers_collectives_make_what_the_ledger_says(model: Model, seed: int) -> None:
    """Every collective of a layer, embedding and head whose two sides are shardings of one tensor, at degrees of two."""
    ledger = build(model, WORKLOAD, random_column(model, seed, length=1).layout(0))
    checked = {
        (row.before, row.after, row.op)
        for stage in ledger.stages()
        for row, _ in rank_rows(stage)
        if row.op in ("all_gather", "reduce_scatter", "all_reduce") and row.before != row.after and row.before.dims[0].letter != "P"
    }
    for before, after, op in checked:
        axes = sorted({axis for tensor in (before, after) for dim in tensor.dims for axis in dim.axes} | {*before.partial})
        move = check(before, after, dict.fromkeys(axes, 2))
        assert move is not None
        assert move.op == op
