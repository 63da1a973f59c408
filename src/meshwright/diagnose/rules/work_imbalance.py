"""Detects ``work-imbalance``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.rules.straggler import LEAST_SLOWDOWN, MOST, told_of_waiting
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.diagnose.slow.what_if import WhatIf, what_ifs
from meshwright.units import format_seconds

LEAST_WAITING = 0.1
"""Share of the ranks' time. Some waiting of all for all is there in every job; a tenth of the step is worth a look."""

ALIKE = 0.9
"""Correlation of forward and backward times of the micro-batches above which it is their work that differs, since both take the same
sequences (arXiv 2505.05713, section 5.3, takes 0.9)."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Much waiting, and no rank, worker or stage that explains half of it."""
    if (profile := evidence.derived(profile_of)) is not None:
        yield from _in_profile(profile)
    for each in evidence.derived(what_ifs):
        yield from _in_table(each)


def _in_profile(profile: Profile) -> Iterator[Hit]:
    waited_s = sum(profile.caused_s.values())
    if len(profile.ranks) < 3 or waited_s < LEAST_WAITING * profile.window_s or max(profile.caused_s.values()) >= MOST * waited_s:
        return
    shares = sorted(((seconds / waited_s, rank) for rank, seconds in profile.caused_s.items()), reverse=True)[:4]
    yield Hit(
        confidence="medium", words={"lost": f"{waited_s / profile.window_s:.1%} of the ranks' time"},
        evidence=(*told_of_waiting(profile), "Of the waiting, " + ", ".join(f"{share:.0%} is for rank {rank}" for share, rank in shares)),
        weight=waited_s / len(profile.ranks) / profile.steps,
    )  # fmt: skip


def _in_table(found: WhatIf) -> Iterator[Hit]:
    if found.slowdown < LEAST_SLOWDOWN or max(*found.workers.values(), *found.stages.values()) >= MOST:
        return
    if found.computing < MOST:
        return
    alike = _correlation(found)
    yield Hit(
        confidence="high" if alike >= ALIKE else "medium", words={"lost": f"{1 - 1 / found.slowdown:.1%} of the step"},
        evidence=(
            f"The job is {found.slowdown:.3f} times slower than if every operation took its usual time: {format_seconds(found.played_s)} a "
            f"step against {format_seconds(found.ideal_s)}",
            f"No worker explains more than {max(found.workers.values()):.1%} of the loss and no stage more than "
            f"{max(found.stages.values()):.1%}; computations together explain {found.computing:.1%}",
            f"Forward and backward times of the micro-batches correlate with {alike:.2f}: "
            + ("what a micro-batch holds makes the difference" if alike >= ALIKE else "it is not only what a micro-batch holds"),
        ),
        weight=found.lost_s,
    )  # fmt: skip


def _correlation(found: WhatIf) -> float:
    """Of the forward and the backward time of the same micro-batch on the same worker, each against the worker's mean."""
    import numpy as np

    rows: dict[tuple[object, ...], dict[str, np.ndarray]] = {}
    for node, duration in zip(found.graph.nodes, found.graph.duration_s, strict=True):
        if node.kind in ("forward-compute", "backward-compute"):
            rows.setdefault((node.worker, node.sequence), {})[node.kind] = duration
    pairs = [(row["forward-compute"], row["backward-compute"]) for row in rows.values() if len(row) == 2]
    forward, backward = (np.concatenate([pair[index] for pair in pairs]) for index in (0, 1))
    if not len(pairs) or forward.std() == 0 or backward.std() == 0:
        return 0.0
    return float(np.corrcoef(forward, backward)[0, 1])
