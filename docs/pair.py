"""One MLP, a column-parallel and a row-parallel layer, computed in numpy on "ranks" that are entries of a list.

What each rank holds and what is sent is read off the ledger's rows: nothing here knows how tensor parallelism works.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

import meshwright as mw
from meshwright.notation import Sharded, parse
from meshwright.sharding import Redistribution, redistribute

Array = npt.NDArray[np.float64]
TP, BATCH, SEQ, D, F = 2, 3, 8, 64, 192
BOUND = 1e-13
"""Sums of 192 products in another order differ by a few units in the 16th digit."""


def shard(whole: Array, tensor: Sharded, rank: int) -> Array:
    """The block of ``whole`` that a rank holds under the notation."""
    for dim, cut in enumerate(tensor.dims):
        if "tp" in cut.axes:
            whole = np.split(whole, TP, axis=dim)[rank]
    return whole


def collective(move: Redistribution, held: list[Array]) -> list[Array]:
    """What the collective leaves on each rank, given what each rank has."""
    if move.op == "all_gather":
        return [np.concatenate(held, axis=move.dim)] * TP
    if move.op == "reduce_scatter":
        return np.split(np.sum(held, axis=0), TP, axis=move.dim)
    assert move.op == "all_reduce"
    return [np.sum(held, axis=0)] * TP


def activation(gate_up: Array) -> Array:
    """SwiGLU on a rank's channels."""
    gate, up = np.split(gate_up, 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def run(layout: str) -> float:
    """Follow the ledger's rows of one MLP forward; returns the largest difference to one device, relative to the largest value."""
    config = Path(__file__).with_name("small.json")
    rows = mw.explain(config, cluster="h100-sxm", layout=layout, seq=SEQ, batch=BATCH, layer=0, phase="forward").rows
    rows = tuple(row for row in rows if row.name in ("mlp.gate_up", "mlp.activation", "mlp.down"))
    rng = np.random.default_rng(0)
    x, gate, up, down = (rng.normal(size=size) for size in [(BATCH, SEQ, D), (D, F), (D, F), (F, D)])
    column, row_cut = parse("float64[D, F/tp]"), parse("float64[F/tp, D]")
    held = [shard(x, parse(rows[0].before), rank) for rank in range(TP)]
    for row in rows:
        before, after = parse(row.before), parse(row.after)
        assert all(array.shape == row.before_shape for array in held)
        if row.op:
            move = redistribute(before, after)
            assert move is not None and move.op == row.op
            held = collective(move, held)
        elif row.name == "mlp.gate_up":
            held = [array @ np.hstack([shard(w, column, rank) for w in (gate, up)]) for rank, array in enumerate(held)]
        elif row.name == "mlp.activation":
            held = [activation(array) for array in held]
        else:
            held = [array @ shard(down, row_cut, rank) for rank, array in enumerate(held)]
        assert all(array.shape == row.after_shape for array in held)
        print(f"{row.name:15}{row.op or 'compute':15}{before} -> {after}: {list(held[0].shape)} on each rank")
    whole = activation(np.concatenate([x @ gate, x @ up], axis=-1)) @ down
    differences = [np.abs(array - shard(whole, after, rank)).max() for rank, array in enumerate(held)]
    return float(max(differences) / np.abs(whole).max())


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print(f"--- {text}")
        print("the same as on one device" if run(text) < BOUND else "NOT the same as on one device")
