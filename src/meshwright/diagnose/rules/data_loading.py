"""Detects ``data-loading``."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.slow.profile import profile_of
from meshwright.units import format_seconds

LEAST_SHARE = 0.05
"""Of the step: a loader that keeps up takes a copy of a batch, well under a hundredth (0.9 % with four workers and 24.4 % with none in
the ResNet-50 traces of PyTorch's profiler plugin)."""

LEAST_IDLE = 0.5
"""Of the loader's time: if the device is mostly busy meanwhile, the queue of launched kernels hides it."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Hosts that wait for their data loader for a good part of the step, while their devices have nothing to do."""
    profile = evidence.derived(profile_of)
    if profile is None:
        return
    slow = [
        split
        for split in profile.splits
        if split.loading_s >= LEAST_SHARE * split.stepped_s > 0
        and (split.idle_s["data loading"] >= LEAST_IDLE * split.loading_s or not split.on_device)
    ]
    if not slow:
        return
    loading_s, stepped_s, idle_s = (
        sum(values) for values in zip(*((each.loading_s, each.stepped_s, each.idle_s["data loading"]) for each in slow), strict=True)
    )
    steps = sum(split.steps for split in slow)
    who = "the GPU" if slow[0].on_device else "everything else"
    yield Hit(
        ranks=tuple(split.rank for split in slow), words={"share": f"{loading_s / stepped_s:.1%}", "who": who},
        evidence=(
            f"The host waits {format_seconds(loading_s / steps)} for the data loader in each step of {format_seconds(stepped_s / steps)}",
            f"Meanwhile the device idles for {format_seconds(idle_s / steps)}; in the whole step it idles "
            f"{mean(split.idle_share for split in slow):.1%} of the time",
        ),
        confidence="high" if steps > len(slow) else "medium",
        weight=idle_s / steps,
    )  # fmt: skip
