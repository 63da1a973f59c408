"""What ``meshwright collectives all_to_all --experts MODEL`` answers: every way to dispatch, counted and priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.collectives.experts.dispatch import dispatch_s
from meshwright.collectives.experts.placement import Placement, co_activation, place
from meshwright.collectives.experts.routing import Routing, sample, shares
from meshwright.collectives.experts.traffic import WAYS, Traffic, contiguous, traffic
from meshwright.collectives.price import Group
from meshwright.collectives.step_price import packed_group
from meshwright.errors import InputError, Mistake
from meshwright.spec.cluster import Cluster
from meshwright.spec.model import Model, Moe

DISPATCH_BYTES, COMBINE_BYTES = 2, 2
"""bf16 both ways, as the ledger has it."""

SAMPLED_TOKENS = 512
"""Tokens drawn on each rank; counts are scaled to those asked for."""

MAX_RANKS = 256


@dataclass(frozen=True, kw_only=True)
class WayRow:
    """One way to dispatch under one placement.

    Attributes:
        limited: whether the model's group limit holds. placed: whether experts were placed by load and co-activation.
        copies: of a token, over each tier, for the average rank. bytes: of the busiest rank, over each tier.
        tail: the busiest adapter over the average one. imbalance: the busiest rank's share of the experts' work over the average.
    """

    way: str
    limited: bool
    placed: bool
    copies: tuple[float, ...]
    bytes: tuple[float, ...]
    tail: float
    imbalance: float
    dispatch_s: float
    combine_s: float


@dataclass(frozen=True, kw_only=True)
class ExpertReport:
    """Every way, for one layer and micro-batch.

    Attributes:
        tokens: of each rank. tiers: names of those in use. placement: None with balanced choices, where there is nothing to gain.
    """

    model: str
    cluster: str
    ranks: int
    tokens: int
    tiers: tuple[str, ...]
    rows: tuple[WayRow, ...]
    placement: Placement | None

    @property
    def best(self) -> WayRow:
        """The fastest there and back."""
        return min(self.rows, key=lambda row: row.dispatch_s + row.combine_s)

    def as_json(self) -> dict[str, object]:
        """The keys of the command's answer."""
        rows = [{key: getattr(row, key) for key in WayRow.__dataclass_fields__} for row in self.rows]
        answer = {"model": self.model, "cluster": self.cluster, "ranks": self.ranks, "tokens": self.tokens, "tiers": self.tiers}
        bounds = ("inside", "inside_bound", "heaviest", "heaviest_bound")
        placement = {key: getattr(self.placement, key) for key in bounds} if self.placement else None
        return {**answer, "ways": rows, "placement": placement}


def expert_report(
    model: Model, cluster: Cluster, ranks: int, tokens: int, loads: Sequence[float] | None = None, file: str = "load", seed: int = 0
) -> ExpertReport:
    """Draw tokens' choices, count what they send, and price it.

    Args:
        tokens: of each rank, in one micro-batch. loads: a histogram over the experts; None for balanced.

    Raises:
        InputError: a model without experts, ranks that do not divide them or do not fill nodes, or a histogram that cannot be.
    """
    group = packed_group(ranks, cluster)
    moe = _checked(model, ranks, group)
    histogram = None if loads is None else shares(loads, moe, file)
    drawn = min(tokens, SAMPLED_TOKENS)
    limits = (True, False) if moe.num_groups > moe.top_groups else (True,)
    routings = {limited: sample(moe, ranks, drawn, histogram, limited, seed) for limited in limits}
    own = contiguous(moe.num_experts, ranks)
    scale = tokens / drawn
    rows = [_row(r, own, group, cluster, way, limited, False, scale, model) for limited, r in routings.items() for way in WAYS]
    placement = None
    if histogram is not None:
        routing = routings[True]
        placement = place(co_activation(routing), histogram, max(ranks // int(group.members[0]), 1), ranks)
        rows += [_row(routing, placement.rank_of, group, cluster, way, True, True, scale, model) for way in WAYS]
    used = tuple(t.name for t, below, m in zip(cluster.tiers, (1, *group.members[:-1]), group.members, strict=True) if m > below)
    return ExpertReport(
        model=model.name, cluster=cluster.name, ranks=ranks, tokens=tokens, tiers=used, rows=tuple(rows), placement=placement
    )


def _checked(model: Model, ranks: int, group: Group) -> Moe:
    moe, mistakes = model.moe, []
    if moe is None:
        mistakes.append(Mistake("command line", "--experts", model.name, "a model with experts", problem="has none"))
    elif ranks > MAX_RANKS or moe.num_experts % ranks or ranks % int(group.members[0]):
        legal = f"a divisor of the {moe.num_experts} experts up to {MAX_RANKS} that fills its nodes"
        mistakes.append(Mistake("command line", "--ranks", ranks, legal))
    if mistakes or moe is None:
        raise InputError(mistakes)
    return moe


def _row(
    routing: Routing, rank_of: np.ndarray, group: Group, cluster: Cluster, way: str, limited: bool, placed: bool, scale: float, model: Model
) -> WayRow:  # fmt: skip
    found = traffic(routing, rank_of, group, way)
    drawn = routing.chosen.shape[1]
    whole = _scaled(found, scale)
    dispatched, combined = DISPATCH_BYTES * model.hidden_size, COMBINE_BYTES * model.hidden_size
    used = [i for i, (below, m) in enumerate(zip((1, *group.members[:-1]), group.members, strict=True)) if m > below]
    return WayRow(
        way=way, limited=limited, placed=placed, copies=tuple(found.mean[i] / drawn for i in used),
        bytes=tuple(whole.busiest[i] * dispatched for i in used), tail=found.tail, imbalance=found.imbalance,
        dispatch_s=dispatch_s(whole, dispatched, group, cluster.tiers), combine_s=dispatch_s(whole, combined, group, cluster.tiers),
    )  # fmt: skip


def _scaled(found: Traffic, scale: float) -> Traffic:
    return replace(found, busiest=tuple(scale * x for x in found.busiest), mean=tuple(scale * x for x in found.mean))
