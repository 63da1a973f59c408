"""Detects ``host-bound``."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.slow.profile import profile_of
from meshwright.diagnose.slow.step_split import StepSplit
from meshwright.units import format_seconds

LEAST_SHARE = 0.3
"""Of the step, without what a data loader explains. Gaps of a tenth are usual in eager training; from a third on the host sets the pace."""

ONE_CALL = 0.5
"""Share of the idling above which a single call of the runtime is named."""

DIFFUSE = 0.5
"""Part of the idling that counts when findings are ordered: no program has none of it, so a cause that can be pointed at comes first
unless this one is twice as large."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Devices that idle since their host has not launched the next kernel."""
    profile = evidence.derived(profile_of)
    if profile is None:
        return
    slow = [split for split in profile.splits if split.on_device and split.idle_s["host"] >= LEAST_SHARE * split.window_s]
    if not slow:
        return
    idle = mean(split.idle_s["host"] / split.window_s for split in slow)
    step_s = mean(split.window_s / split.steps for split in slow)
    computing = mean(sum(split.compute_s.values()) / split.window_s for split in slow)
    communicating = mean(sum(split.exposed_s.values()) / split.window_s for split in slow)
    host_s = sum(split.idle_s["host"] / split.steps for split in slow) / len(slow)
    yield Hit(
        ranks=tuple(split.rank for split in slow), words={"idle": f"{idle:.1%}"},
        evidence=(
            f"In a step of {format_seconds(step_s)} the device idles for {format_seconds(host_s)} because the next kernel has not been "
            "launched yet",
            f"It computes {computing:.1%} of the time and communicates another {communicating:.1%}",
            *_one_call(slow),
        ),
        weight=DIFFUSE * host_s,
    )  # fmt: skip


def _one_call(slow: list[StepSplit]) -> Iterator[str]:
    worst = max(slow, key=lambda split: split.longest_call.idle_s if split.longest_call else 0.0)
    call = worst.longest_call
    if call is not None and call.idle_s >= ONE_CALL * sum(worst.idle_s.values()):
        yield (
            f"One call covers most of it: the host of rank {worst.rank} is in `{call.name}` for {format_seconds(call.idle_s)} "
            "of the device's idling"
        )
