"""Random columns of legal layouts: one structure, degrees as arrays."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from meshwright.search.space import DEGREES, ZEROS, Column
from meshwright.spec.layout import CP_KINDS, ORDER_AXES, SCHEDULES, TWO_CHUNK_SCHEDULES
from meshwright.spec.model import Model
from meshwright.spec.rules import Case, legal
from meshwright.spec.rules.candidates import divisors
from meshwright.spec.workload import Training

CLOSED_FORM = tuple(schedule for schedule in SCHEDULES if schedule not in ("zb-1p", "zb-2p"))
"""zb-1p and zb-2p are made for given durations: their span is the simulator's, and the search leaves them out."""

WORKLOAD = Training(seq=4608, batch=2304)
"""Both have many divisors: 4608 = 2^9 9, 2304 = 2^8 9."""


def random_column(model: Model, seed: int, length: int = 8, workload: Training = WORKLOAD) -> Column:
    """``length`` distinct legal layouts of one random structure, on equally many GPUs as in a search."""
    rng = random.Random(seed)
    while True:
        column = _degrees(model, _structure(model, rng), rng, 40 if length == 1 else 300 * length)
        mask = np.broadcast_to(legal(Case(model=model, workload=workload, layout=column)), len(column))  # type: ignore[arg-type]
        worlds, counts = np.unique(column.world_size[mask], return_counts=True)
        most = worlds[counts.argmax()] if length > 1 and len(worlds) else column.world_size
        index = np.flatnonzero(mask & (column.world_size == most))[:length]
        if len(index) == length:
            return column.take(index)


def _structure(model: Model, rng: random.Random) -> dict[str, object]:
    pp = rng.choice([1, 1, 2, 3, 4, 6])
    schedule = rng.choice(CLOSED_FORM) if pp > 1 else rng.choice(["1f1b", "1f1b", "gpipe"])
    v = 2 if schedule in TWO_CHUNK_SCHEDULES else rng.choice([2, 3]) if schedule == "interleaved" else 1
    zero, variant = rng.choice(ZEROS)
    recompute = rng.choice(["none", "selective", "full", "full"])
    order = list(ORDER_AXES)
    rng.shuffle(order)
    return {
        "pp": pp, "schedule": schedule, "virtual_stages": v, "stages": _stages(model.num_layers, pp * v, rng),
        "zero": zero, "zero_variant": variant, "sp": rng.random() < 0.5, "vocab": rng.random() < 0.7,
        "vocab_pad": rng.choice([1, 8, 128]), "cp_kind": rng.choice(CP_KINDS), "recompute": recompute,
        "recompute_layers": 1 if recompute == "full" and rng.random() < 0.5 else None,
        "order": "-".join(order) if rng.random() < 0.5 else "tp-cp-ep-dp-pp",
    }  # fmt: skip


def _stages(num_layers: int, chunks: int, rng: random.Random) -> tuple[int, ...] | None:
    """An uneven split, or None for an even one; with more chunks than layers there is none, and the rules refuse it."""
    if chunks > num_layers or (num_layers % chunks == 0 and rng.random() < 0.5):
        return None
    if chunks > 2 and rng.random() < 0.2:  # the embedding or the head alone on its chunk
        inner = _stages_of(num_layers, chunks - 1, rng)
        return (0, *inner) if rng.random() < 0.5 else (*inner, 0)
    return _stages_of(num_layers, chunks, rng)


def _stages_of(num_layers: int, chunks: int, rng: random.Random) -> tuple[int, ...]:
    cuts = sorted(rng.sample(range(1, num_layers), chunks - 1))
    return tuple(stop - start for start, stop in zip([0, *cuts], [*cuts, num_layers], strict=True))


def _degrees(model: Model, structure: dict[str, object], rng: random.Random, count: int) -> Column:
    found = {_one(model, structure, rng) for _ in range(count)}
    rows = dict(zip(DEGREES, np.array(sorted(found, key=lambda _: rng.random()), dtype=np.int64).T, strict=True))
    return Column(**rows, **structure)  # type: ignore[arg-type]


def _one(model: Model, structure: dict[str, object], rng: random.Random) -> tuple[int, ...]:
    """tp, cp, ulysses, ep, etp, dp_replicate, dp_shard, mb; may be illegal together."""
    tp, cp = rng.choice([1, 2, 3, 4, 6, 8, 12, 24]), rng.choice([1, 2, 3, 4, 6, 8])
    kind = structure["cp_kind"]
    ulysses = cp if kind == "ulysses" else rng.choice(divisors(cp)) if kind == "usp" else 1
    shard = rng.choice([1, 2, 3, 4, 8])
    ep, etp = 1, tp
    if model.moe is not None:
        etp = rng.choice(divisors(tp)) if structure["sp"] else tp
        ep = rng.choice([d for d in divisors(model.moe.num_experts) if tp * cp * shard % (d * etp) == 0])
    return tp, cp, ulysses, ep, etp, rng.choice([1, 1, 2, 3]), shard, rng.choice([1, 1, 2, 3])


def with_degrees(column: Column, **degrees: object) -> Column:
    """The column with some of its degrees or words replaced."""
    return replace(column, **degrees)  # type: ignore[arg-type]
