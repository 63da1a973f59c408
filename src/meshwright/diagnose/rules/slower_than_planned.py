"""Detects ``slower-than-planned``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.slow.planned import Compared, planned_against_measured
from meshwright.units import format_seconds, format_traffic

MUCH_SLOWER = 1.6
"""Measured against predicted. Exposed parts of an estimate that was not calibrated may be off by as much (estimate.EXPOSED_SPREAD)."""

LEAST_SHARE = 0.01
"""Of the step: what less costs is not told."""

MOST_TOLD = 5
"""Collectives that are told, those that cost most first."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Collectives whose transfer takes much longer than the plan says."""
    found = evidence.derived(planned_against_measured)
    if found is None:
        return
    hits = [_hit(each) for each in found.collectives if _slow(each, found.step_s)]
    yield from sorted(hits, key=lambda hit: -hit.weight)[:MOST_TOLD]


def _slow(each: Compared, step_s: float) -> bool:
    excess_s = (each.measured_s - each.predicted_s) * each.calls
    return each.measured_s > MUCH_SLOWER * each.predicted_s and excess_s > LEAST_SHARE * step_s


def _hit(each: Compared) -> Hit:
    because, told = _why(each)
    return Hit(
        ranks=each.ranks, group=each.group or each.axis, collective=each.op,
        confidence="high" if each.nodes > each.planned_nodes else "medium",
        words={
            "what": f"{each.axis} {each.op}", "measured": format_seconds(each.measured_s), "predicted": format_seconds(each.predicted_s),
            "because": because,
        },
        evidence=(
            f"{each.calls:g} a step, {format_traffic(each.payload_bytes)} each: {format_seconds(each.calls * each.measured_s)}, "
            f"{format_seconds(each.calls * each.predicted_s)} predicted (transfer; waiting for late ranks is in neither)",
            told,
        ),
        weight=(each.measured_s - each.predicted_s) * each.calls,
    )  # fmt: skip


def _why(each: Compared) -> tuple[str, str]:
    """(end of the headline, a sentence of evidence)."""
    nodes = "one node" if each.nodes == 1 else f"{each.nodes} nodes"
    ranks = ", ".join(map(str, each.ranks[:8])) + (", ..." if len(each.ranks) > 8 else "")
    placed = f"Its ranks {ranks} are on {nodes} as they are numbered; there, such a call takes {format_seconds(each.as_placed_s)}"
    if each.nodes > each.planned_nodes:
        planned = "one node" if each.planned_nodes == 1 else f"{each.planned_nodes} nodes"
        return f": its group spans {nodes}", f"{placed}. The plan has the group on {planned}"
    return f", on {nodes} as planned", placed
