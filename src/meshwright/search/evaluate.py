"""Price a space: legality, memory, and step time of what fits, column by column.

Blocks depend on the degrees, sp, cp kind and precision; units also on the ZeRO stage; the pipeline and the recompute policy
only choose among them. So a column is priced once and looked at under every pipeline, ZeRO stage and recompute policy; the
memory formula rejects most, and only the rest is timed. Every number comes from the functions that price a single layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.collectives.fabric import Fabric
from meshwright.estimate import fits
from meshwright.ledger.build import Ledger, precision_of
from meshwright.ledger.sizes import Sizes
from meshwright.ledger.stages import pipeline
from meshwright.memory import peak_bytes
from meshwright.priced import Priced
from meshwright.search.join import join
from meshwright.search.space import RECOMPUTES, ZEROS, Column, Space
from meshwright.spec.cluster import Cluster
from meshwright.spec.rules import RULES, Case, Rule
from meshwright.spec.rules.pipeline import RULES as PIPELINE_RULES
from meshwright.spec.stack import Stack
from meshwright.step_time import step_s

COLUMN_RULES: tuple[Rule, ...] = tuple(rule for rule in RULES if rule not in PIPELINE_RULES)
"""Rules that do not look at the pipeline: asked once per column."""

Indices = npt.NDArray[Any]
Seconds = npt.NDArray[np.float64]

Chooser = Callable[[Column], Any]
"""A mask of the layouts of a column that the user wants, or True."""


Waiting = tuple[Priced, Indices, Seconds]
"""A priced column, the layouts of it that fit, and their peaks."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Layouts of one column that fit."""

    column: Column
    index: Indices
    step_s: Seconds
    peak_bytes: Seconds


@dataclass
class Found:
    """What the search knows after pricing.

    Attributes:
        enumerated: legal layouts of the space. evaluated: those of them that were priced or rejected by the memory formula.
        segments: what fits: a column, the index of the layouts in it, their step seconds and peak bytes.
        nearest: the layout that overshoots least where nothing fits, with its peak.
    """

    enumerated: int = 0
    evaluated: int = 0
    feasible: int = 0
    segments: list[Segment] = field(default_factory=list)
    nearest: tuple[Column, int, float] | None = None

    def merge(self, other: Found) -> None:
        self.enumerated += other.enumerated
        self.evaluated += other.evaluated
        self.feasible += other.feasible
        self.segments += other.segments
        if other.nearest is not None:
            self.note_nearest(*other.nearest)

    def note_nearest(self, column: Column, index: int, peak: float) -> None:
        if self.nearest is None or peak < self.nearest[2]:
            self.nearest = column, index, peak


@dataclass(frozen=True)
class Question:
    """A space on a cluster, and what the user wants of it."""

    space: Space
    cluster: Cluster
    stack: Stack
    memory_fraction: float
    wanted: Chooser = lambda column: True


def evaluate(question: Question, pp: int, cp_kind: str, sp: bool) -> Found:
    """Every layout of one structure."""
    found = Found()
    waiting: dict[Any, list[Waiting]] = {}
    base = _legal(question, question.space.column(pp, cp_kind, sp), COLUMN_RULES)
    if len(base):
        _evaluate_column(question, base, found, waiting)
    for parts in waiting.values():
        _time(parts, found)
    return found


TIMED_AT_ONCE = 100_000
"""Chunk times in one go (chunks x layouts): a few arrays of this length stay in the second-level cache."""


def _time(parts: list[Waiting], found: Found) -> None:
    """Step time of what fits, of many columns with one pipeline together."""
    layout = parts[0][0].ledger.layout
    most = max(1, TIMED_AT_ONCE // (layout.pp * layout.virtual_stages))
    batch: list[Waiting] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part[1])
        if size >= most:
            _time_batch(batch, found)
            batch, size = [], 0
    if batch:
        _time_batch(batch, found)


def _time_batch(parts: list[Waiting], found: Found) -> None:
    seconds = np.asarray(step_s(join([(priced, index) for priced, index, _ in parts])))
    start = 0
    for priced, index, peak in parts:
        found.segments.append(Segment(priced.ledger.layout, index.astype(np.int32), seconds[start : start + len(index)], peak))
        start += len(index)


def _legal(question: Question, column: Column, rules: tuple[Rule, ...]) -> Column:
    space = question.space
    case = Case(model=space.model, workload=space.workload, layout=column, cluster=question.cluster, gpus=space.gpus)  # type: ignore[arg-type]
    mask: Any = np.ones(len(column), dtype=bool)
    for rule in rules:
        mask = mask & rule.holds(case)
    return column if mask.all() else column.take(np.flatnonzero(mask))


def _evaluate_column(question: Question, base: Column, found: Found, waiting: dict[Any, list[Waiting]]) -> None:
    """All ZeRO stages of one column; blocks are shared by stages of one precision."""
    blocks: dict[str, dict[object, Any]] = {}
    for zero, variant in ZEROS:
        if zero == 0:
            column = base.take(np.flatnonzero(base.dp_replicate == 1))
        else:
            column = base.take(np.flatnonzero(base.dp_shard * base.cp > 1))
        column = replace(column, zero=zero, zero_variant=variant)
        if not len(column):
            continue
        precision = precision_of(question.space.workload, column)
        own = blocks.setdefault(f"{precision.name}{zero == 0}", {})
        _evaluate_zero(question, column, own, found, waiting)


def _evaluate_zero(question: Question, column: Column, blocks: dict[object, Any], found: Found, waiting: dict[Any, list[Waiting]]) -> None:
    space = question.space
    precision = precision_of(space.workload, column)
    sizes = Sizes(space.model, space.workload, column, precision, question.stack)
    fabric = Fabric(column, question.cluster, space.model.attention.num_kv_heads)
    units: dict[object, Any] = {}
    for schedule, v, stages in space.schedules(column.pp):
        cut = replace(column, schedule=schedule, virtual_stages=v, stages=stages)
        legal = _pipeline_mask(question, cut)
        if not legal.any():
            continue
        for recompute in RECOMPUTES:
            chosen = replace(cut, recompute=recompute)
            layers = pipeline(space.model, schedule, chosen.pp, v, stages, recompute, None)
            ledger = Ledger(space.model, space.workload, chosen, question.stack, precision, sizes, layers)
            priced = Priced(ledger, question.cluster, fabric, blocks, units)
            _reject_by_memory(question, priced, legal & question.wanted(chosen), found, waiting)


def _pipeline_mask(question: Question, column: Column) -> Any:
    space = question.space
    case = Case(model=space.model, workload=space.workload, layout=column, cluster=question.cluster, gpus=space.gpus)  # type: ignore[arg-type]
    mask: Any = np.ones(len(column), dtype=bool)
    for rule in PIPELINE_RULES:
        mask = mask & rule.holds(case)
    return mask


def _reject_by_memory(question: Question, priced: Priced, wanted: Any, found: Found, waiting: dict[Any, list[Waiting]]) -> None:
    """Memory of all; what fits waits to be timed with others of its pipeline."""
    column = priced.ledger.layout
    count = int(np.count_nonzero(wanted))
    found.enumerated += count
    if not count:
        return
    found.evaluated += count
    peak = np.broadcast_to(np.asarray(peak_bytes(priced), dtype=np.float64), len(column))
    index = np.flatnonzero(wanted & fits(peak, question.cluster, question.memory_fraction))
    if not len(index):
        _note_nearest(found, column, peak, wanted)
        return
    found.feasible += len(index)
    waiting.setdefault((column.schedule, column.virtual_stages, column.stages), []).append((priced, index, peak[index]))


def _note_nearest(found: Found, column: Column, peak: Any, wanted: Any) -> None:
    over = np.where(wanted, peak, np.inf)
    index = int(np.argmin(over))
    found.note_nearest(column, index, float(over[index]))
