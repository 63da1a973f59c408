"""A cluster with what was measured on it: curves fitted tier by tier, and how its price was before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.calibrate.network import Fit, Point, fit_all, median_error
from meshwright.calibrate.network_file import curve_table, measured
from meshwright.collectives.price import IN_SWITCH_LEAST_RANKS, Group, collective_s
from meshwright.collectives.rates import rate
from meshwright.errors import InputError, Mistake
from meshwright.spec.cluster import Cluster, Tier
from meshwright.spec.network import MeasuredCurve
from meshwright.spec.plain_data import to_table
from meshwright.spec.toml_writer import toml_text

LARGEST_HOST = 16
"""GPUs of the largest single host (NVIDIA DGX-2). A larger innermost tier spans hosts, which then say nothing of tiers."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """One new curve of a cluster.

    Attributes:
        tier: the tier it prices. before: median error of its points at the prices of the cluster it was put into.
        after: the same at the prices of the new cluster, whose other tiers and algorithms take part as well.
    """

    tier: str
    curve: MeasuredCurve
    before: float
    after: float

    def as_json(self) -> dict[str, object]:
        """Every constant of the curve, and the errors."""
        return {"tier": self.tier, **curve_table(self.curve), "price_error_before": self.before, "price_error": self.after}


def calibrate(base: Cluster, points: Sequence[Point], name: str, source: str) -> tuple[Cluster, tuple[Calibrated, ...]]:
    """``base`` with curves fitted to ``points``, under a new name, and what is new in it.

    A tier keeps the curves of ops that were not measured. What a full measurement holds already (oversubscription) is dropped
    from a tier with new curves.

    Raises InputError: points that cannot be fitted, or groups that do not fit the tiers.
    """
    placed = _placed(base, points)
    in_switch_from = IN_SWITCH_LEAST_RANKS if base.tiers[0].in_network_reduction else None
    tiers, new = list(base.tiers), list[tuple[int, Fit, MeasuredCurve]]()
    mistakes: list[Mistake] = []
    for index, tier in enumerate(base.tiers):
        mine = [point for where, point in placed if where == index]
        try:
            fits = fit_all(mine, in_switch_from, lambda op: rate(tiers[0], True, op)) if mine else ()
        except InputError as error:
            mistakes += error.mistakes
            continue
        fitted = [(fit, measured(fit, source)) for fit in fits]
        tiers[index] = _with(tier, [curve for _, curve in fitted], name)
        new += [(index, fit, curve) for fit, curve in fitted]
    if mistakes:
        raise InputError(mistakes)
    cluster = replace(base, name=name, tiers=tuple(tiers))
    found = tuple(
        Calibrated(tier=tiers[i].name, curve=curve, before=_price_error(base, fit.points), after=_price_error(cluster, fit.points))
        for i, fit, curve in new
    )
    return cluster, found


def cluster_text(cluster: Cluster) -> str:
    """The cluster as a file for ``--cluster``; everything in it is resolved."""
    values = to_table(cluster)
    for table, tier in zip(values["tiers"], cluster.tiers, strict=True):
        if tier.curves:
            table["curves"] = [curve_table(curve) for curve in tier.curves]
    return "# Written by `meshwright calibrate`; docs/reference/cluster-file.md describes the keys.\n\n" + toml_text(values)


def _placed(base: Cluster, points: Sequence[Point]) -> list[tuple[int, Point]]:
    """(index of the tier, point) with nodes counted in units of the innermost tier."""
    unit = base.tiers[0].size
    mistakes, placed = [], []
    for point in points:
        nodes = point.nodes
        if unit is not None and unit > LARGEST_HOST:
            nodes = -(-point.ranks // unit)
        if nodes == 1 and unit is not None and point.ranks > unit:
            hint = "give the cluster that was measured with --cluster"
            legal = f"at most {unit} in one node of {base.name}"
            mistakes.append(Mistake(point.where, "ranks", point.ranks, legal, hint, "are more than its innermost tier holds"))
        elif nodes > 1 and len(base.tiers) == 1:
            mistakes.append(Mistake(point.where, "nodes", nodes, f"1: {base.name} has one tier", problem="have no tier between them"))
        else:
            placed.append((0 if nodes == 1 else _tier_across(base, point.ranks, nodes), replace(point, nodes=nodes)))
    if mistakes:
        raise InputError(mistakes[:1])  # the rest say the same
    return placed


def _tier_across(base: Cluster, ranks: int, nodes: int) -> int:
    """The first tier outside the node that holds so many GPUs, neighbours being under one switch."""
    unit = base.tiers[0].size
    gpus = ranks if unit is None else max(ranks, nodes * unit)
    return next((i for i, tier in enumerate(base.tiers) if i and (tier.size is None or tier.size >= gpus)), len(base.tiers) - 1)


def _with(tier: Tier, curves: Sequence[MeasuredCurve], name: str) -> Tier:
    if not curves:
        return tier
    known = {(curve.op, curve.algorithm) for curve in curves}
    kept = [curve for curve in tier.curves if (curve.op, curve.algorithm) not in known]
    return replace(tier, curves=(*curves, *kept), network=name, oversubscription=1.0)


def _price_error(cluster: Cluster, points: Sequence[Point]) -> float:
    """Median error of the price that plans are made with."""
    return median_error([float(collective_s(p.op, p.payload_bytes, _group(cluster, p), cluster.tiers)) / p.time_s - 1 for p in points])


def _group(cluster: Cluster, point: Point) -> Group:
    """The measured group on the cluster's tiers; its nodes are neighbours."""
    inside, unit = point.ranks // point.nodes, cluster.tiers[0].size
    members = [inside]
    for tier in cluster.tiers[1:]:
        whole = tier.size is None or unit is None or point.nodes == 1
        members.append(point.ranks if whole else min(point.ranks, inside * ((tier.size or 1) // (unit or 1))))
    return Group(point.ranks, tuple(members))
