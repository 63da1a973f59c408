"""Fit network curves to measured collectives: weighted least squares that a few odd points cannot bend.

The unknowns of a curve (``spec/network.py``) enter its time linearly, and none may be negative, so that the fit is a
small non-negative least-squares problem. Each point weighs by its own time (errors are relative, sizes span six orders of
magnitude), and points that miss by more than ``TOLERATED_ERROR`` weigh less, in proportion (Huber's weights, iterated;
Huber, "Robust estimation of a location parameter", Ann. Math. Stat. 35 (1964)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from meshwright.calibrate.counts import ALGORITHMS, counts, inside_s
from meshwright.errors import InputError, Mistake
from meshwright.spec.network import Curve

Floats = NDArray[np.float64]

TOLERATED_ERROR = 0.05
"""Relative error up to which a point has full weight: repeats of nccl-tests on one idle node differ by a few percent."""

ROUNDS = 20
"""Of reweighting; the weights of the tables in the catalog move by less than 1e-3 after ten."""

FEWEST_SIZES = 3
"""Different sizes that a curve needs: launch, bandwidth and the rise between them."""


@dataclass(frozen=True)
class Point:
    """One measured collective. ``payload_bytes`` as in the ledger; ``where`` is the file and line it came from."""

    op: str
    ranks: int
    payload_bytes: float
    time_s: float
    nodes: int = 1
    where: str = ""


@dataclass(frozen=True)
class Fit:
    """A curve and how well it describes its points.

    Attributes:
        errors: predicted / measured - 1 of each point, in the order of ``points``.
        left_out_size_errors, left_out_group_errors: the same, each point predicted by a fit that never saw its size (its
            group size); empty where too little would be left to fit.
    """

    op: str
    algorithm: str
    curve: Curve
    points: tuple[Point, ...]
    errors: tuple[float, ...]
    left_out_size_errors: tuple[float, ...]
    left_out_group_errors: tuple[float, ...]


def median_error(errors: Sequence[float]) -> float:
    """Median of the absolute relative errors."""
    return float(np.median(np.abs(errors)))


def fit(points: Iterable[Point], algorithm: str, inside: Curve | None = None) -> Fit:
    """Fit one curve to the points of one op, inside a node or across nodes.

    With one group size the latency of a step cannot be told from the launch, nor the local copy from the wire: both
    are then in ``launch_s`` and ``bandwidth_bytes_per_s``.

    Args:
        inside: for points across nodes, the curve of the node's own tier, whose share of the time is taken off first.

    Raises InputError for points of several ops, fewer than three sizes, or times and sizes that are not positive.
    """
    chosen = tuple(sorted(points, key=lambda p: (p.ranks, p.payload_bytes)))
    _check(chosen, algorithm)
    curve = _curve(chosen, algorithm, inside)
    return Fit(
        op=chosen[0].op,
        algorithm=algorithm,
        curve=curve,
        points=chosen,
        errors=_errors(curve, chosen, algorithm, inside),
        left_out_size_errors=_left_out(chosen, algorithm, inside, lambda p: p.payload_bytes),
        left_out_group_errors=_left_out(chosen, algorithm, inside, lambda p: p.ranks),
    )


def fit_all(
    points: Iterable[Point], in_switch_from: int | None = None, inside: Callable[[str], Curve | None] = lambda op: None
) -> tuple[Fit, ...]:
    """One fit per op inside a node, and one per op across nodes, in the order of ALGORITHMS.

    Args:
        in_switch_from: on how many ranks of one node an all_reduce is reduced by the switch (NCCL 2.27 and later: 8 GPUs of
            Hopper or later); those points then have their own curve. None: never.
        inside: the curve of the node's own tier for an op, where the points themselves do not give one.

    Raises InputError with the mistakes of all of them.
    """
    found: list[Fit] = []
    mistakes: list[Mistake] = []
    every = list(points)
    for across in (False, True):
        fitted = {one.op: one.curve for one in found if one.algorithm != "in_switch"}
        for op, algorithm in ALGORITHMS:
            in_switch = algorithm == "in_switch"
            chosen = [p for p in every if p.op == op and (p.nodes > 1) == across and _is_in_switch(p, in_switch_from) == in_switch]
            try:
                found += [fit(chosen, algorithm, (fitted.get(op) or inside(op)) if across else None)] if chosen else []
            except InputError as error:
                mistakes += error.mistakes
    if mistakes:
        raise InputError(mistakes)
    return tuple(found)


def _is_in_switch(point: Point, in_switch_from: int | None) -> bool:
    return in_switch_from is not None and point.op == "all_reduce" and point.nodes == 1 and point.ranks >= in_switch_from


def _check(points: tuple[Point, ...], algorithm: str) -> None:
    mistakes = [
        Mistake(p.where, key, value, "a positive number", problem=f"of {p.op} on {p.ranks} ranks cannot be fitted")
        for p in points
        for key, value in (("time_s", p.time_s), ("payload_bytes", p.payload_bytes))
        if not (0 < value < math.inf)
    ]
    ops = sorted({p.op for p in points})
    sizes = {p.payload_bytes for p in points}
    uneven = next((p for p in points if p.ranks % p.nodes), None)
    if uneven is not None:
        problem = f"are not spread evenly over {uneven.nodes} nodes"
        mistakes.append(Mistake(uneven.where, "ranks", uneven.ranks, f"a multiple of {uneven.nodes}", problem=problem))
    if len(ops) > 1 or any((op, algorithm) not in ALGORITHMS for op in ops):
        legal = ", ".join(f"{op} {name}" for op, name in ALGORITHMS)
        mistakes.append(Mistake("", "op", f"{', '.join(ops)} {algorithm}", f"one of: {legal}", problem="has no curve"))
    elif len(sizes) < FEWEST_SIZES:
        hint = "measure a range, for example nccl-tests with -b 1K -e 512M -f 4"
        where, what = (points[0].where, f"of {ops[0]}") if points else ("", "")
        problem = f"{what} is too few for a curve".strip()
        mistakes.append(Mistake(where, "different sizes", len(sizes), f"{FEWEST_SIZES} or more", hint, problem))
    if mistakes:
        raise InputError(mistakes)


@dataclass(frozen=True)
class _Counted:
    """Points as arrays of one entry each: what a curve takes, and the seconds that are not the curve's."""

    steps: Floats
    wire_bytes: Floats
    own_bytes: Floats
    inside_s: Floats


def _count(points: Sequence[Point], algorithm: str, inside: Curve | None) -> _Counted:
    op, across = points[0].op, points[0].nodes > 1
    ranks = np.array([p.ranks for p in points], dtype=np.float64)
    nodes = np.array([p.nodes for p in points], dtype=np.float64)
    payload = np.array([p.payload_bytes for p in points], dtype=np.float64)
    steps, wire, own = (np.broadcast_to(x, ranks.shape) for x in counts(op, algorithm, payload, ranks, nodes if across else 1))
    before = inside_s(op, payload, ranks, nodes, inside) if across and inside is not None else np.zeros_like(ranks)
    return _Counted(steps, wire, own, before)


def _columns(counted: _Counted) -> tuple[list[str], Floats]:
    """The linear unknowns and their factors, float[points, unknowns]; what one group size cannot show is left out."""
    wire = counted.wire_bytes
    columns = {"launch": np.ones_like(wire), "wire": wire, "root": np.sqrt(wire)}
    if len(set(counted.steps)) > 1:
        columns |= {"step": counted.steps}
        columns |= {"own": counted.own_bytes} if counted.own_bytes.any() else {}
    return list(columns), np.stack(list(columns.values()), axis=1)


def _curve(points: Sequence[Point], algorithm: str, inside: Curve | None) -> Curve:
    counted = _count(points, algorithm, inside)
    time_s = np.array([p.time_s for p in points])
    names, factors = _columns(counted)
    solution = dict(zip(names, _robust(factors, time_s, counted.inside_s).tolist(), strict=True))
    per_byte, own = solution["wire"], solution.get("own", 0.0)
    return Curve(
        launch_s=solution["launch"],
        step_latency_s=solution.get("step", 0.0),
        bandwidth_bytes_per_s=1 / per_byte,
        half_bytes=(solution["root"] / per_byte) ** 2,
        copy_bandwidth_bytes_per_s=1 / own if own else None,
    )


def _robust(factors: Floats, time_s: Floats, known_s: Floats) -> Floats:
    """The unknowns; ``known_s`` is the part of each time that is not theirs."""
    weight = 1 / time_s
    solution = np.zeros(factors.shape[1])
    for _ in range(ROUNDS):
        solution = non_negative(factors * weight[:, None], (time_s - known_s) * weight)
        error = np.abs((factors @ solution + known_s) / time_s - 1)
        weight = np.sqrt(TOLERATED_ERROR / np.maximum(error, TOLERATED_ERROR)) / time_s
    return solution


def non_negative(factors: Floats, wanted: Floats) -> Floats:
    """min |factors x - wanted|^2 over x >= 0 with x[1] > 0: the best of all choices of unknowns that are not zero.

    At most five unknowns, so 31 ordinary least-squares problems; the second is the time per wire byte, without which
    there is no bandwidth.
    """
    unknowns = factors.shape[1]
    scale = np.linalg.norm(factors, axis=0)
    best, least = np.zeros(unknowns), math.inf
    for count in range(1, unknowns + 1):
        for chosen in combinations(range(unknowns), count):
            if 1 not in chosen:
                continue
            part, *_ = np.linalg.lstsq(factors[:, chosen] / scale[list(chosen)], wanted, rcond=None)
            missed = float(np.sum((factors[:, chosen] / scale[list(chosen)] @ part - wanted) ** 2))
            if (part >= 0).all() and part[chosen.index(1)] > 0 and missed < least:
                best, least = np.zeros(unknowns), missed
                best[list(chosen)] = part / scale[list(chosen)]
    return best


def predicted_s(curve: Curve, algorithm: str, point: Point, inside: Curve | None = None) -> float:
    """Seconds that a curve gives for one point, whose own time is not looked at."""
    return float(_predicted(curve, (point,), algorithm, inside)[0])


def _predicted(curve: Curve, points: Sequence[Point], algorithm: str, inside: Curve | None) -> Floats:
    counted = _count(points, algorithm, inside)
    seconds: Floats = counted.inside_s + curve.time_s(counted.steps, counted.wire_bytes, counted.own_bytes)
    return seconds


def _errors(curve: Curve, points: Sequence[Point], algorithm: str, inside: Curve | None) -> tuple[float, ...]:
    return tuple((_predicted(curve, points, algorithm, inside) / np.array([p.time_s for p in points]) - 1).tolist())


def _left_out(points: Sequence[Point], algorithm: str, inside: Curve | None, key: Callable[[Point], float]) -> tuple[float, ...]:
    errors: list[float] = []
    for value in sorted({key(p) for p in points}):
        held, out = [p for p in points if key(p) != value], [p for p in points if key(p) == value]
        if len({p.payload_bytes for p in held}) < FEWEST_SIZES:
            return ()
        errors += _errors(_curve(held, algorithm, inside), out, algorithm, inside)
    return tuple(errors)
