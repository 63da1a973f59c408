"""What ``timeline`` answers: the simulated step in figures, who holds the others up, and how parameters and compute overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from meshwright.chunk_time import chunk_times
from meshwright.schedule.in_flight import count_in_flight
from meshwright.step_time import busy_parts
from meshwright.timeline.inside import InsideLayer, inside_layer
from meshwright.timeline.layers import LayerOverlap, layer_overlap
from meshwright.timeline.slow import parse_slow
from meshwright.timeline.step import Step, simulate_step
from meshwright.timeline.waiting import culprit

if TYPE_CHECKING:
    from meshwright.priced import Priced
    from meshwright.schedule import Schedule

__all__ = ["TimelineReport", "report_timeline"]

CAUSES = ("upstream", "downstream", "transfer", "sending", "start", "gradients", "end")
"""For what a rank waits (timeline/waiting.py); ``gradients``: its own reduction, as far as it sticks out."""


@dataclass(frozen=True)
class TimelineReport:
    """A step of one layout, and beside it the same step without what was made slow.

    Attributes:
        slow: as the user said it; empty for a healthy step, whose ``healthy`` is the step itself.
        layers: how a layer's compute and its data-parallel collectives overlap; None where they send nothing in a micro-batch.
        inside: one layer, with what tp, cp and ep send in it; None where they send nothing. warnings: of the layout.
    """

    step: Step
    healthy: Step
    slow: tuple[str, ...]
    layers: LayerOverlap | None
    inside: InsideLayer | None
    warnings: tuple[Any, ...] = ()

    @property
    def step_s(self) -> float:
        return self.step.step_s

    @property
    def culprit(self) -> int | None:
        """The pipeline rank that waits least, if one stands out: the one that the others wait for."""
        return culprit(self.step.timeline)

    @cached_property
    def in_flight(self) -> list[float]:
        """Micro-batches whose activations each rank holds at most; a chunk's count by its share of the rank."""
        schedule = self.step.timeline.schedule
        return [float(count) / schedule.chunks_per_rank * schedule.copies for count in count_in_flight(schedule)]

    def host_s(self, rank: int) -> float:
        """How much of a rank's computing is its device waiting for the host, which launches small kernels slower than they run; of the
        plan's own durations."""
        numbers = self.step.numbers
        return float(busy_parts(numbers, chunk_times(numbers), rank).other_s)

    def waited_s(self, rank: int) -> float:
        """All waiting of a rank."""
        return sum(float(seconds[rank]) for seconds in self.step.waiting_s.values())

    def added_s(self, rank: int) -> float:
        """How much longer a rank waits than in the healthy step."""
        return self.waited_s(rank) - sum(float(seconds[rank]) for seconds in self.healthy.waiting_s.values())

    def shares_of_critical_path(self) -> list[tuple[str, float]]:
        """What the critical path is made of, by rank and kind, the largest first; shares of the step."""
        found: Counter[str] = Counter()
        for link in self.step.critical_path:
            what = "compute" if "ward" in link.what else link.what
            found[f"{what} of rank {link.rank}"] += link.end_s - link.start_s  # type: ignore[assignment]
        return [(name, seconds / self.step_s) for name, seconds in found.most_common()]

    def as_json(self) -> dict[str, Any]:
        """The keys of DESIGN section 7, and what stands beside them."""
        step = self.step
        return {
            "layout": str(step.numbers.ledger.layout),
            "step_s": self.step_s,
            "bubble_fraction": step.bubble_fraction,
            "ranks": [self._rank(rank) for rank in range(len(step.ends))],
            "critical_path": [link._asdict() for link in step.critical_path],
            "culprit": self.culprit,
            "slow": list(self.slow),
            "healthy_step_s": self.healthy.step_s,
            "layers": None if self.layers is None else self.layers.as_json(),
            "inside_layer": None if self.inside is None else self.inside.as_json(),
        }

    def _rank(self, rank: int) -> dict[str, Any]:
        return {
            "rank": rank,
            "busy_s": float(self.step.timeline.busy_s[rank]),
            "waiting_s": {cause: float(self.step.waiting_s[cause][rank]) for cause in CAUSES},
            "in_flight": self.in_flight[rank],
        }


def report_timeline(
    numbers: Priced, slow: Sequence[str] = (), warnings: Sequence[Any] = (), source: str = "--slow", schedule: Schedule | None = None
) -> TimelineReport:
    """The timeline of one layout, with something slow in it if asked (timeline/slow.py says how to write that).

    Raises:
        InputError: a slowness that is not understood, or a stage, rank or link that there is not.
    """
    parsed = [parse_slow(text, source) for text in slow]
    healthy = simulate_step(numbers, (), schedule)
    step = simulate_step(numbers, parsed, schedule) if parsed else healthy
    return TimelineReport(step, healthy, tuple(slow), layer_overlap(numbers), inside_layer(numbers), tuple(warnings))
