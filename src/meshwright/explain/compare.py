"""Several layouts side by side, and in words which parts of the step make the difference, with the counts behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwright.estimate import Estimate
from meshwright.explain.by_axis import AxisTable, explain_by_axis
from meshwright.explain.cuts import schedule_word
from meshwright.explain.listing import StageListing
from meshwright.explain.memory_report import MemoryReport, report_memory
from meshwright.priced import Priced
from meshwright.spec.rules import LayoutWarning
from meshwright.units import format_count, format_memory, format_seconds, format_traffic

TOLD = 0.9
"""Parts are told until they make up this share of all differences of parts."""

SAME = 0.005
"""Counts that differ by less than this are not called different."""

LINES_OF_PART = {"tp_s": ("tp", "sp", "vocab"), "cp_s": ("cp",), "ep_s": ("ep",), "pp_s": ("pp",), "dp_s": ("dp",), "other_s": ("other",)}


@dataclass(frozen=True)
class Candidate:
    """One layout with everything that is known of it, as far as it is asked for."""

    estimate: Estimate
    numbers: Priced
    memory_fraction: float
    warnings: tuple[LayoutWarning, ...] = ()

    @cached_property
    def axes(self) -> AxisTable:
        return explain_by_axis(self.numbers, warnings=self.warnings)

    @cached_property
    def memory(self) -> MemoryReport:
        return report_memory(self.numbers, self.memory_fraction, self.warnings)


@dataclass(frozen=True)
class Difference:
    """What separates a layout from the best one.

    Attributes:
        layout, against: indices of the two. step_s: how much longer. parts: how much more of each part.
        words: the same, with reasons.
    """

    layout: int
    against: int
    step_s: float
    parts: dict[str, float]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Estimates in the order they were asked for; ``best`` is the fastest that fits, or the fastest if none does."""

    estimates: tuple[Estimate, ...]
    best: int
    differences: tuple[Difference, ...]

    @property
    def fits(self) -> bool:
        """Whether any layout fits."""
        return any(estimate.fits for estimate in self.estimates)

    def as_json(self) -> dict[str, object]:
        return {
            "estimates": [estimate.as_json() for estimate in self.estimates],
            "best": self.best,
            "differences": [vars(difference) for difference in self.differences],
        }


def compare(candidates: Sequence[Candidate]) -> Comparison:
    """The estimates, and each one's difference to the best."""
    estimates = tuple(candidate.estimate for candidate in candidates)
    best = min(range(len(estimates)), key=lambda index: (not estimates[index].fits, estimates[index].step_s))
    others = [index for index in range(len(estimates)) if index != best]
    differences = tuple(difference(candidates[best], candidates[index], best, index) for index in others)
    return Comparison(estimates, best, differences)


def difference(best: Candidate, other: Candidate, best_index: int = 0, index: int = 1) -> Difference:
    """What separates ``other`` from ``best``; the indices are what the two are called."""
    a, b = best.estimate, other.estimate
    parts = {part: b.parts[part] - a.parts[part] for part in b.parts}
    told = _told(parts)
    words = [f"{_part(part)} {_signed(parts[part])}: {REASONS[part](best, other, part)}" for part in told]
    memory = b.memory_bytes - a.memory_bytes
    if abs(memory) > SAME * a.memory_bytes:
        words.append(f"memory {_signed_memory(memory)}: {_memory_reason(best, other)}")
    return Difference(index, best_index, b.step_s - a.step_s, parts, tuple(words))


def _told(parts: dict[str, float]) -> list[str]:
    """The parts that differ most, largest first."""
    whole = sum(abs(change) for change in parts.values())
    told: list[str] = []
    covered = 0.0
    for part in sorted(parts, key=lambda part: -abs(parts[part])):
        if covered >= TOLD * whole or not parts[part]:
            break
        told.append(part)
        covered += abs(parts[part])
    return told


def _compute(a: Candidate, b: Candidate, part: str) -> str:
    flops = [_flops(a, part == "recompute_s"), _flops(b, part == "recompute_s")]
    rates = [
        count / candidate.estimate.parts[part] if candidate.estimate.parts[part] else 0.0
        for candidate, count in zip((a, b), flops, strict=True)
    ]
    words = [_changed("flops on the busiest rank", flops[0], flops[1], format_count)]
    if all(rates):
        words.append(_changed("flops/s reached", rates[0], rates[1], format_count))
    if part == "recompute_s":
        words.insert(0, _changed("", _recompute(a), _recompute(b)))
    return ", ".join(word for word in words if word) or "the same flops at about the same rate"


def _recompute(candidate: Candidate) -> str:
    layout = candidate.estimate.layout
    return f"recompute={layout.recompute}" + (f"={layout.recompute_layers}" if layout.recompute_layers else "")


def _flops(candidate: Candidate, again: bool) -> float:
    """Flops per step of the busiest rank of the stage that the axis table is of, first time or recomputed."""
    rows = StageListing(candidate.numbers.ledger, candidate.axes.stage).rows
    own = (listed for listed in rows if (listed.row.phase == "recompute") == again)
    return sum(float(listed.row.flops * listed.row.imbalance) * listed.calls for listed in own)


def _collectives(a: Candidate, b: Candidate, part: str) -> str:
    lines = [[candidate.axes.line(axis) for axis in LINES_OF_PART[part]] for candidate in (a, b)]
    wire = [sum(line.wire_bytes for line in each) for each in lines]
    calls = [sum(line.calls for line in each) for each in lines]
    tiers = [_tiers([line.tier for line in each]) for each in lines]
    words = [
        _keys(a, b, part),
        _changed("sent", wire[0], wire[1], format_traffic),
        _changed("calls", calls[0], calls[1], lambda n: f"{n:,.0f}"),
    ]
    if all(tiers) and tiers[0] != tiers[1]:
        words.append(f"over {tiers[1]} instead of {tiers[0]}")
    return ", ".join(word for word in words if word) or "the same calls and bytes; more or less of them is hidden"


def _tiers(tiers: list[str]) -> str:
    return " and ".join(dict.fromkeys(tier for tier in tiers if tier))


def _keys(a: Candidate, b: Candidate, part: str) -> str:
    """The layout's keys behind a part, where they differ."""
    keys: dict[str, Callable[[Candidate], str]] = {
        "tp_s": lambda c: f"tp={c.estimate.layout.tp}{' sp' if c.estimate.layout.sp else ''}",
        "cp_s": lambda c: f"cp={c.estimate.layout.cp}:{c.estimate.layout.cp_kind}",
        "ep_s": lambda c: f"ep={c.estimate.layout.ep} etp={c.estimate.layout.etp}",
        "pp_s": lambda c: f"pp={c.estimate.layout.pp}:{schedule_word(c.estimate.layout)}",
        "dp_s": lambda c: (
            f"dp={c.estimate.layout.dp_replicate}x{c.estimate.layout.dp_shard} zero={c.estimate.layout.zero}"
            + (f":{c.estimate.layout.zero_variant}" if c.estimate.layout.zero_variant else "")
        ),
        "other_s": lambda c: f"{c.estimate.layout.world_size} ranks",
    }
    return _changed("", keys[part](a), keys[part](b))


def _bubble(a: Candidate, b: Candidate, part: str) -> str:
    def said(candidate: Candidate) -> str:
        layout = candidate.estimate.layout
        return (
            f"{layout.pp} stages, {schedule_word(layout)}, m = {candidate.numbers.ledger.micro_batches}" if layout.pp > 1 else "no pipeline"
        )

    idle = [candidate.estimate.bubble_fraction for candidate in (a, b)]
    return f"{_changed('', said(a), said(b)) or said(b)}; ranks idle {idle[1]:.1%} instead of {idle[0]:.1%} of the pipeline's time"


def _optimizer(a: Candidate, b: Candidate, part: str) -> str:
    states = [candidate.memory.fullest.categories["optimizer"] for candidate in (a, b)]
    return _changed("of optimizer state on the fullest rank", states[0], states[1], format_memory) or "the same state"


REASONS: dict[str, Callable[[Candidate, Candidate, str], str]] = {
    "compute_s": _compute, "recompute_s": _compute, "bubble_s": _bubble, "optimizer_s": _optimizer,
    **dict.fromkeys(LINES_OF_PART, _collectives),
}  # fmt: skip


def _memory_reason(a: Candidate, b: Candidate) -> str:
    before, after = a.memory.fullest.categories, b.memory.fullest.categories
    changes = {name: float(after[name] - before[name]) for name in after}
    return ", ".join(f"{name.replace('_', ' ')} {_signed_memory(changes[name])}" for name in _told(changes))


def _changed(what: str, before: object, after: object, show: Callable[[float], str] | None = None) -> str:
    """``75 GB sent instead of 43 GB``; "" where nothing changed."""
    if isinstance(before, int | float) and isinstance(after, int | float):
        if abs(after - before) <= SAME * max(abs(after), abs(before)):
            return ""
        before, after = (show or str)(before), (show or str)(after)
    if before == after:
        return ""
    return f"{after} {what}".strip() + f" instead of {before}"


def _part(part: str) -> str:
    return part.removesuffix("_s")


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds))}"


def _signed_memory(num_bytes: float) -> str:
    return f"{'+' if num_bytes >= 0 else '-'}{format_memory(abs(num_bytes))}"
