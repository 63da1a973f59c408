"""Detects ``slow-compute``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.slow.planned import planned_against_measured
from meshwright.units import format_seconds

MUCH_SLOWER = 1.4
"""Measured against predicted: beyond the spread of compute in an estimate that was not calibrated (estimate.COMPUTE_SPREAD)."""

LEAST_SHARE = 0.05
"""Of the step that the excess must be."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Phases whose kernels run much longer than the plan's operations would."""
    found = evidence.derived(planned_against_measured)
    for each in found.phases if found else ():
        excess_s = each.measured_s - each.predicted_s
        if each.measured_s > MUCH_SLOWER * each.predicted_s and found and excess_s > LEAST_SHARE * found.step_s:
            yield Hit(
                confidence="medium",
                words={"phase": each.phase, "measured": format_seconds(each.measured_s), "predicted": format_seconds(each.predicted_s)},
                evidence=(
                    f"Kernels of the {each.phase} run for {format_seconds(each.measured_s)} a step, mean over the ranks that were traced; "
                    f"the operations of the plan add up to {format_seconds(each.predicted_s)}",
                ),
                weight=excess_s,
            )
