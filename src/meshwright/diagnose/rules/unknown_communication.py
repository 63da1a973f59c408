"""Detects ``unknown-communication``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.units import format_seconds

LISTED = 8
"""Kernels that are named, the longest first."""

NAME_CHARS = 90


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Kernels that sound like communication and are of no known library; or a job of several ranks in which none is recognised."""
    profile = evidence.derived(profile_of)
    if profile is None:
        return
    suspects: dict[str, float] = defaultdict(float)
    for trace in profile.traces:
        for name, seconds in trace.suspects.items():
            suspects[name] += seconds
    if suspects:
        yield Hit(
            ranks=tuple(trace.rank for trace in profile.traces if trace.suspects), confidence="medium",
            words={"what": f"{len(suspects)} kernel{'s' if len(suspects) > 1 else ''} counted as communication by name alone"},
            evidence=_told(suspects),
        )  # fmt: skip
    elif (
        profile.world_size > 1
        and not any(trace.communications for trace in profile.traces)
        and any(len(trace.compute) for trace in profile.traces)
    ):
        yield Hit(
            confidence="low", words={"what": f"no kernel of this job of {profile.world_size} ranks is known as communication"},
            evidence=("Either none was traced, or it is among these kernels on streams of their own", *_told(_beside(profile))),
        )  # fmt: skip


def _told(seconds: Mapping[str, float]) -> tuple[str, ...]:
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:LISTED]
    return tuple(f"{format_seconds(value)} in `{name[:NAME_CHARS]}`" for name, value in longest if value)


def _beside(profile: Profile) -> dict[str, float]:
    """Seconds of the kernels outside of each rank's busiest stream; of all, if there is one stream."""
    import numpy as np

    found: dict[str, float] = defaultdict(float)
    for trace in profile.traces:
        spans = trace.compute
        busy = np.bincount(spans.lane, weights=spans.duration_s, minlength=1)
        beside = spans.where(spans.lane != int(np.argmax(busy))) if np.count_nonzero(busy) > 1 else spans
        by_name = np.bincount(beside.name, weights=beside.duration_s, minlength=len(beside.names))
        for name, value in zip(beside.names, by_name.tolist(), strict=True):
            found[name] += value
    return found
