"""A plan too large for the machine, made small: degrees shrink to 2, sizes to a few dozen, and what the plan exercises stays.

Candidates are small degrees for every axis in use; each gets tiny sizes (tiny.py), must be legal by the very rules of plans, and must have
the features of the true plan (features.py). The one with the fewest ranks is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from meshwright.errors import InputError, Mistake
from meshwright.prove.features import features, luxuries
from meshwright.prove.tiny import tiny_batch, tiny_layers_per_chunk, tiny_model, tiny_sequence
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.parameters import parameter_count
from meshwright.spec.rules import check
from meshwright.spec.workload import Training

LARGEST_PARAMETERS = 3_000_000
LARGEST_TOKENS = 8192
"""What is run as it is: a step of that size takes about a second on one core in float64."""

MOST_RANKS = 128
"""Where a scaled plan is sought at most, to say how many ranks it would need."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """What is run in place of a plan.

    Attributes:
        changes: what was scaled, "tp 8 -> 2". lost: what the plan exercises and this does not.
    """

    model: Model
    workload: Training
    layout: Layout
    changes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def scale(model: Model, workload: Training, layout: Layout, ranks: int) -> Scaled:
    """The plan itself if it fits ``ranks`` and is small; else the smallest that exercises the same.

    Raises:
        InputError: no such plan has ``ranks`` ranks or fewer; told with the number that would do.
    """
    if layout.world_size <= ranks and _is_small(model, workload):
        return Scaled(model=model, workload=workload, layout=layout)
    found = sorted(_candidates(model, workload, layout, MOST_RANKS), key=lambda scaled: _cost(scaled, layout, ranks))
    fitting = [scaled for scaled in found if scaled.layout.world_size <= ranks]
    if fitting:
        return fitting[0]
    raise InputError([_refusal(layout, ranks, found)])


def _is_small(model: Model, workload: Training) -> bool:
    return parameter_count(model, with_mtp=True) <= LARGEST_PARAMETERS and workload.seq * workload.batch <= LARGEST_TOKENS


def _cost(scaled: Scaled, layout: Layout, ranks: int) -> tuple[bool, int, int]:
    """The true degrees first, where they fit; then what loses least; then the fewest ranks."""
    true_degrees = _degrees(scaled.layout) == _degrees(layout) and layout.world_size <= ranks
    return not true_degrees, len(scaled.lost), scaled.layout.world_size


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.cp, layout.ulysses, layout.dp_replicate, layout.dp_shard, layout.pp, layout.ep, layout.etp


def _refusal(layout: Layout, ranks: int, found: list[Scaled]) -> Mistake:
    axes = [axis for axis in ("tp", "cp", "dp_replicate", "dp_shard", "pp") if getattr(layout, axis) > 1]
    if not found:
        problem = "cannot be scaled: no small degrees keep what this layout exercises"
        return Mistake("--layout", "layout", str(layout), f"a layout of {ranks} ranks or fewer", problem=problem)
    least = min(found, key=lambda scaled: scaled.layout.world_size)
    needed = least.layout.world_size
    problem = f"are too few: with {', '.join(axes)} above 1 the smallest layout that exercises the same has {needed}, `{least.layout}`"
    return Mistake("--ranks", "ranks", ranks, f"{needed} or more", problem=problem)


def _candidates(model: Model, workload: Training, layout: Layout, ranks: int) -> Iterator[Scaled]:
    wanted, wishes = features(model, workload, layout), luxuries(model, layout)
    for small in _small_layouts(layout, ranks):
        scaled = _shrunk(model, workload, layout, small)
        try:
            check(scaled.model, scaled.workload, scaled.layout)
        except InputError:
            continue
        if features(scaled.model, scaled.workload, scaled.layout) != wanted:
            continue
        kept = luxuries(scaled.model, scaled.layout)
        yield replace(scaled, lost=tuple(wish for wish, value in wishes.items() if kept[wish] != value))


def _small_layouts(layout: Layout, ranks: int) -> Iterator[Layout]:
    """The true degrees, and every combination of 1, 2 and 4 on the axes in use that has at most ``ranks`` ranks."""
    if layout.world_size <= ranks:
        yield _with(layout, *_degrees(layout))

    def choices(degree: int) -> tuple[int, ...]:
        return (1,) if degree == 1 else tuple(value for value in (2, 4) if value <= degree) or (degree,)

    ring = layout.cp // layout.ulysses
    for tp, u, r, copies, shard, pp in product(
        choices(layout.tp),
        choices(layout.ulysses),
        choices(ring),
        choices(layout.dp_replicate),
        choices(layout.dp_shard),
        choices(layout.pp),
    ):
        for ep in choices(layout.ep):
            for etp in _etps(layout, tp):
                if tp * u * r * copies * shard * pp <= ranks:
                    yield _with(layout, tp, u * r, u, copies, shard, pp, ep, etp)


def _etps(layout: Layout, tp: int) -> tuple[int, ...]:
    if layout.etp == layout.tp:
        return (tp,)
    return (1,) if layout.etp == 1 else tuple(value for value in (2, 4) if value != tp)


def _with(layout: Layout, tp: int, cp: int, ulysses: int, copies: int, shard: int, pp: int, ep: int, etp: int) -> Layout:
    """The layout with other degrees and what follows from them: stages, recomputed layers, micro-batch, padding."""
    virtual = min(layout.virtual_stages, 2)
    small = replace(
        layout, tp=tp, cp=cp, ulysses=ulysses, dp_replicate=copies, dp_shard=shard, pp=pp, ep=ep, etp=etp, virtual_stages=virtual,
        mb=min(layout.mb, 2), vocab_pad=min(layout.vocab_pad, 8), recompute_layers=None if layout.recompute_layers is None else 1,
    )  # fmt: skip
    if layout.stages is None:
        return small
    chunks, even = pp * virtual, len(set(layout.stages)) == 1
    per_chunk = tiny_layers_per_chunk(small)
    return replace(small, stages=(per_chunk,) * chunks if even else (per_chunk + 1, *(per_chunk,) * (chunks - 1)))


def _shrunk(model: Model, workload: Training, old: Layout, new: Layout) -> Scaled:
    seq = tiny_sequence(new)
    tiny = tiny_model(model, old, new, seq, workload.seq)
    if new.stages is not None and sum(new.stages) < tiny.num_layers:  # kinds that the stages do not hold yet
        new = replace(new, stages=(new.stages[0] + tiny.num_layers - sum(new.stages), *new.stages[1:]))
    batch = tiny_batch(old.micro_batches(workload.batch), new)
    step = replace(workload, seq=seq, batch=batch)
    return Scaled(model=tiny, workload=step, layout=new, changes=tuple(_changes(model, workload, old, tiny, step, new)))


def _changes(model: Model, workload: Training, layout: Layout, tiny: Model, step: Training, small: Layout) -> Iterator[str]:
    """``tp 8 -> 2``: every number that was changed."""
    pairs: list[tuple[str, object, object]] = [
        (name, getattr(layout, name), getattr(small, name))
        for name in ("tp", "cp", "ulysses", "pp", "virtual_stages", "stages", "ep", "etp", "dp_replicate", "dp_shard", "mb", "vocab_pad",
                     "recompute_layers")
    ]  # fmt: skip
    pairs += [
        (name, getattr(model, name), getattr(tiny, name)) for name in ("num_layers", "hidden_size", "ffn_size", "vocab_size", "mtp_layers")
    ]
    names = ("num_heads", "num_kv_heads", "head_dim")
    pairs += [(name, getattr(model.attention, name), getattr(tiny.attention, name)) for name in names]
    if model.moe is not None and tiny.moe is not None:
        of_moe = ("num_experts", "top_k", "expert_ffn_size", "shared_ffn_size", "num_groups")
        pairs += [(name, getattr(model.moe, name), getattr(tiny.moe, name)) for name in of_moe]
    pairs += [("seq", workload.seq, step.seq), ("batch", workload.batch, step.batch)]
    yield from (f"{name} {_text(old)} -> {_text(new)}" for name, old, new in pairs if old != new)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
