"""Which order of the axes is fastest for a layout: every order priced, and what each axis wants.

The order decides which ranks are neighbours, hence which tier each group spans; nothing else of a layout depends on it. So the
usual advice (tp inside the node, then cp, pp across, dp outermost) is not a rule here but an outcome, and where it does not
hold the same table says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations

from meshwright.errors import InputError
from meshwright.estimate import priced
from meshwright.mesh import Leg, legs
from meshwright.priced import Priced
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import DEFAULT_ORDER, Layout
from meshwright.spec.model import Model
from meshwright.spec.rules import check
from meshwright.spec.rules.rule import kv_heads
from meshwright.spec.stack import Stack
from meshwright.spec.workload import Training
from meshwright.timeline.step import simulated_parts

SHOWN_AXES = ("tp", "cp", "ep", "etp", "dp_shard", "dp_replicate", "pp")


@dataclass(frozen=True, kw_only=True)
class OrderRow:
    """One way to lay the axes over the ranks.

    Attributes:
        order: innermost first; same: other orders that put every rank into the same groups.
        step_s: of a step, as ``estimate`` has it. parts: its exposed seconds, by ``estimate``'s names.
        tiers: of each axis in use, the outermost tier that its groups span.
    """

    order: str
    same: tuple[str, ...]
    step_s: float
    parts: dict[str, float]
    tiers: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class AxisWish:
    """What a place in the order is worth to one axis.

    Attributes:
        innermost_s, outermost_s: exposed seconds of the axis's own collectives in a step, in the fastest order that has it
            first, and in the fastest that has it last, among the axes in use.
    """

    axis: str
    innermost_s: float
    outermost_s: float

    @property
    def loss_s(self) -> float:
        """What it costs the axis to be outermost rather than innermost."""
        return self.outermost_s - self.innermost_s


@dataclass(frozen=True, kw_only=True)
class OrderReport:
    """Every order of a layout, the fastest first, and the axes by what it costs to push them out.

    Attributes:
        refused: orders in which the expert groups would not be regular.
    """

    layout: Layout
    rows: tuple[OrderRow, ...]
    ladder: tuple[AxisWish, ...]
    refused: int

    @property
    def given(self) -> OrderRow:
        """The row of the layout's own order."""
        return next(row for row in self.rows if self.layout.order in (row.order, *row.same))

    def as_json(self) -> dict[str, object]:
        """The keys of ``meshwright ranks --orders``."""
        rows = [{key: getattr(row, key) for key in ("order", "same", "step_s", "parts", "tiers")} for row in self.rows]
        ladder = [{"axis": wish.axis, "innermost_s": wish.innermost_s, "outermost_s": wish.outermost_s} for wish in self.ladder]
        return {"orders": rows, "best": self.rows[0].order, "given": self.given.order, "ladder": ladder, "refused": self.refused}


def explain_orders(model: Model, cluster: Cluster, workload: Training, layout: Layout, stack: Stack | None = None) -> OrderReport:
    """Price every order of a legal layout.

    Orders in which every axis has the same groups are one row. Equal times keep the order in which they were tried: that of the
    layout first, then the default.
    """
    groups: dict[tuple[tuple[Leg, ...], ...], list[str]] = {}
    refused = 0
    for order in dict.fromkeys((layout.order, DEFAULT_ORDER, *_orders())):
        candidate = replace(layout, order=order)
        try:
            check(model, workload, candidate, cluster)
        except InputError:
            refused += 1
            continue
        groups.setdefault(_shape(model, candidate), []).append(order)
    rows = [_row(priced(model, cluster, workload, replace(layout, order=names[0]), stack), names) for names in groups.values()]
    rows.sort(key=lambda row: row.step_s)
    return OrderReport(layout=layout, rows=tuple(rows), ladder=_ladder(layout, rows), refused=refused)


def _orders() -> Iterable[str]:
    return ("-".join(words) for words in permutations(DEFAULT_ORDER.split("-")))


def _shape(model: Model, layout: Layout) -> tuple[tuple[Leg, ...], ...]:
    """The legs of every axis that may have groups: two orders with the same ones are the same."""
    axes = ["tp", "kv", "ulysses", "ring", "cp", "dp_shard", "dp_replicate", "dp_cp", "fsdp", "pp", "mirror"]
    axes += ["etp", "ep", "edp", "edp_replicate"] if model.moe is not None else []
    return tuple(tuple(leg for leg in legs(layout, axis, kv_heads(model)) if leg.degree > 1) for axis in axes)


def _row(numbers: Priced, names: list[str]) -> OrderRow:
    parts, _ = simulated_parts(numbers)
    layout = numbers.ledger.layout
    used = [
        axis for axis in SHOWN_AXES if getattr(layout, axis) > 1 and (numbers.ledger.model.moe is not None or axis not in ("ep", "etp"))
    ]
    return OrderRow(
        order=names[0],
        same=tuple(names[1:]),
        step_s=float(parts.step_s),
        parts={name: float(value) for name, value in parts.as_dict().items()},
        tiers={axis: numbers.fabric.tier(axis) for axis in used},
    )


def _ladder(layout: Layout, rows: list[OrderRow]) -> tuple[AxisWish, ...]:
    """Axes of more than one rank, the one that loses most by being outermost first."""
    degrees = {"tp": layout.tp, "cp": layout.cp, "ep": layout.ep, "dp": layout.dp, "pp": layout.pp}
    used = [axis for axis, degree in degrees.items() if degree > 1]
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for row in rows:  # the fastest first
        for order in (row.order, *row.same):
            axes = [axis for axis in order.split("-") if axis in used]
            if axes:
                first.setdefault(axes[0], row.parts[f"{axes[0]}_s"])
                last.setdefault(axes[-1], row.parts[f"{axes[-1]}_s"])
    wishes = [AxisWish(axis=axis, innermost_s=first[axis], outermost_s=last[axis]) for axis in used if axis in first and axis in last]
    return tuple(sorted(wishes, key=lambda wish: -wish.loss_s))
