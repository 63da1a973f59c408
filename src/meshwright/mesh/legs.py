"""How far apart the ranks of a group are: strides and legs of every axis, for one layout or a million.

A rank is a number written in mixed radix: its digits are its coordinates on the axes, and ``order`` says which digit
counts fastest. The ranks of a group differ in some digits only, so a group is described by *legs*: (stride, degree)
pairs, innermost first. Nothing has to be enumerated to know its size, its neighbours or its tier.

``legs`` takes an object with the attributes of ``Degrees`` whose degrees are ints or numpy integer arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

Ints: TypeAlias = Any
"""An int, or a numpy array of integers: the formulas here do not care which."""

AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
"""The axes whose degrees multiply to the world size."""

EXPERT_AXES = {"tp": "etp", "ep": "ep", "dp": "edp"}
"""Axes of the expert fold, by the word of ``order`` that places them."""

COMPOSITES = {
    "dp": ("dp_shard", "dp_replicate"),
    "fsdp": ("dp_shard", "cp"),
    "dp_cp": ("dp_shard", "dp_replicate", "cp"),
    "dp_cp_tp": ("dp_shard", "dp_replicate", "cp", "tp"),
    "world": AXES,
}
"""Axes that collectives run over together; any other combination can be asked for as ``"cp,tp"``."""


class Degrees(Protocol):
    """What the mesh needs to know of a layout; degrees are ints, or arrays of the same shape."""

    @property
    def tp(self) -> Ints: ...
    @property
    def cp(self) -> Ints: ...
    @property
    def ulysses(self) -> Ints: ...
    @property
    def pp(self) -> Ints: ...
    @property
    def ep(self) -> Ints: ...
    @property
    def etp(self) -> Ints: ...
    @property
    def dp_replicate(self) -> Ints: ...
    @property
    def dp_shard(self) -> Ints: ...
    @property
    def order(self) -> str: ...


class Leg(NamedTuple):
    """``degree`` ranks, each ``stride`` after the one before."""

    stride: Ints
    degree: Ints


def choose(condition: Any, yes: Ints, no: Ints) -> Ints:
    """``yes if condition else no`` for integers, elementwise for arrays."""
    return condition * yes + (1 - condition) * no


@cache
def dense_axes(order: str) -> tuple[str, ...]:
    """The axes of ``order``, innermost first; dp_shard lies inside dp_replicate, ep belongs to the fold only."""
    axes: list[str] = []
    for word in order.split("-"):
        if word == "dp":
            axes += ["dp_shard", "dp_replicate"]
        elif word != "ep":
            axes.append(word)
    return tuple(axes)


def strides(degrees: Degrees) -> dict[str, Ints]:
    """How far apart neighbours on each axis are: the product of the degrees inside it."""
    found: dict[str, Ints] = {}
    stride: Ints = 1
    for axis in dense_axes(degrees.order):
        found[axis] = stride
        stride = stride * getattr(degrees, axis)
    return found


def merged(parts: Sequence[Leg]) -> tuple[Leg, ...]:
    """Join legs that continue each other: (1, 4) and (4, 2) are (1, 8).

    As many legs come out as went in, so that arrays of legs can be joined in some places and not in others: the outer
    one of a joined pair holds both, the inner one has degree 1.
    """
    joined: list[Leg] = []
    for leg in parts:
        if joined:
            inner = joined[-1]
            continues = leg.stride == inner.stride * inner.degree
            joined[-1] = Leg(inner.stride, choose(continues, 1, inner.degree))
            degree = choose(continues, inner.degree * leg.degree, leg.degree)
            leg = Leg(choose(continues, inner.stride, leg.stride), degree)
        joined.append(leg)
    return tuple(joined)


def legs(degrees: Degrees, axis: str, kv_heads: int | None = None) -> tuple[Leg, ...]:
    """The legs of ``axis``, innermost first; some may have degree 1.

    Args:
        degrees: one layout, or arrays of degrees.
        axis: one of AXES; a name of COMPOSITES; axes joined by commas; ``etp``, ``ep``, ``edp`` (the rest of the
            fold); ``ulysses`` and ``ring``, the parts of cp, ulysses innermost; ``kv``, the tp ranks that hold copies
            of the same kv heads (needs ``kv_heads``); ``edp_replicate``, all copies of an expert; ``embedding``, the first and
            the last stage; ``mirror``, dualpipe's stages i and p-1-i, of which the widest pair is meant.
    """
    step = strides(degrees)
    if axis in EXPERT_AXES.values():
        return _fold_legs(degrees, axis)
    if axis == "edp_replicate":
        return _with_replicas(degrees, _fold_legs(degrees, "edp"))
    if axis in ("mirror", "embedding"):
        return (Leg(step["pp"] * choose(degrees.pp > 1, degrees.pp - 1, 1), choose(degrees.pp > 1, 2, 1)),)
    if axis == "ulysses":
        return (Leg(step["cp"], degrees.ulysses),)
    if axis == "ring":
        return (Leg(step["cp"] * degrees.ulysses, degrees.cp // degrees.ulysses),)
    if axis == "kv":
        # K heads over tp ranks: rank r serves query heads of kv head r K // tp, so neighbours share.
        assert kv_heads is not None, "the kv groups depend on the number of kv heads"
        return (Leg(step["tp"], choose(degrees.tp > kv_heads, degrees.tp // kv_heads, 1)),)
    wanted = members_of(axis)
    return merged([Leg(step[name], getattr(degrees, name)) for name in dense_axes(degrees.order) if name in wanted])


@cache
def members_of(axis: str) -> tuple[str, ...]:
    """The axes of AXES that ``axis`` stands for: ``members_of("dp,tp")`` is dp_shard, dp_replicate and tp."""
    names = [name for word in axis.split(",") for name in COMPOSITES.get(word, (word,))]
    unknown = [name for name in names if name not in AXES]
    if unknown:
        raise ValueError(f"no axis is called {unknown[0]!r}; one of {', '.join((*AXES, *COMPOSITES, *EXPERT_AXES.values()))}")
    return tuple(names)


def _fold_parts(degrees: Degrees, axis: str) -> list[tuple[Ints, Ints, Ints, Leg]]:
    """(position, first, last, leg) of each stretch of the fold: the part of ``axis`` that lies in it.

    The fold numbers the ranks dp_shard x cp x tp of one replica and stage in the layout's order. ``axis`` is the
    digit of that number between ``start`` and ``stop``; a stretch is a part of the fold whose ranks are equally spaced.
    """
    step = strides(degrees)
    fold_axes = [name for name in dense_axes(degrees.order) if name in ("tp", "cp", "dp_shard")]
    fold = degrees.tp * degrees.cp * degrees.dp_shard
    sizes = {"etp": degrees.etp, "ep": degrees.ep, "edp": fold // (degrees.ep * degrees.etp)}
    start: Ints = 1
    for word in degrees.order.split("-"):
        if EXPERT_AXES.get(word) == axis:
            break
        start = start * sizes[EXPERT_AXES[word]] if word in EXPERT_AXES else start
    stop = start * sizes[axis]
    parts: list[tuple[Ints, Ints, Ints, Leg]] = []
    position: Ints = 1
    for stretch in merged([Leg(step[name], getattr(degrees, name)) for name in fold_axes]):
        end = position * stretch.degree
        first, last = _clip(start, position, end), _clip(stop, position, end)
        parts.append((position, first, last, Leg(stretch.stride * (first // position), last // first)))
        position = end
    return parts


@cache
def _fold_is_one_stretch(order: str) -> bool:
    """Whether ``order`` has nothing between tp, cp and dp_shard."""
    places = [place for place, axis in enumerate(dense_axes(order)) if axis in ("tp", "cp", "dp_shard")]
    return places[-1] - places[0] == 2


def _clip(value: Ints, low: Ints, high: Ints) -> Ints:
    return choose(value < low, low, choose(value > high, high, value))


def _fold_legs(degrees: Degrees, axis: str) -> tuple[Leg, ...]:
    return merged([leg for _, _, _, leg in _fold_parts(degrees, axis)])


def _with_replicas(degrees: Degrees, parts: tuple[Leg, ...]) -> tuple[Leg, ...]:
    """The legs of the fold, one for each of its axes in order, with that of dp_replicate in its place: right outside dp_shard."""
    axes = dense_axes(degrees.order)
    inside = sum(axis in ("tp", "cp", "dp_shard") for axis in axes[: axes.index("dp_replicate")])
    replicas = Leg(strides(degrees)["dp_replicate"], degrees.dp_replicate)
    return merged([*parts[:inside], replicas, *parts[inside:]])


def fold_is_regular(degrees: Degrees) -> Any:
    """Whether every expert group has the same shape, for one layout or for each of an array.

    Always so where the fold's ranks are equally spaced (pp last, or outside tp, cp and dp_shard). With another axis in between, etp and
    ep must meet the gap at a whole number, e.g. order tp-pp-dp with tp=6 leaves no regular groups for ep=4.
    """
    regular: Any = True
    if _fold_is_one_stretch(degrees.order):
        return regular
    for axis in EXPERT_AXES.values():
        for position, first, last, _ in _fold_parts(degrees, axis):
            regular = regular & (first % position == 0) & (last % first == 0)
    return regular
