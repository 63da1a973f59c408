"""Detects ``slow-link``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.rules.straggler import LEAST_SLOWDOWN, MOST
from meshwright.diagnose.slow.meetings import Meeting, meetings_of
from meshwright.diagnose.slow.profile import profile_of
from meshwright.diagnose.slow.what_if import WhatIf, what_ifs
from meshwright.recording.read import Recording
from meshwright.recording.recorded_trace import trace_of_recording
from meshwright.units import format_seconds, format_traffic

SLOWER = 1.5
"""Times the median of the groups that do the same."""

LEAST_SHARE = 0.01
"""Of the step."""

RECORDED_SLOWER, RECORDED_CALLS, RECORDED_LEAST_S = 4.0, 8, 0.01
"""The same of our own recordings, whose ranks may share a few cores: of 177 groups in 24 proofs of 6 and 8 ranks, the slowest took 2.4
times its siblings' median over eight calls or more, and 3.4 ms longer (measured on 2 cores, 29 November 2026)."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """A group whose collectives transfer more slowly than those of its siblings: the same op and payload, on other ranks."""
    if (profile := evidence.derived(profile_of)) is not None:
        least_s = LEAST_SHARE * profile.window_s / len(profile.ranks)
        yield from _slow_groups(profile.collectives, SLOWER, 1, lambda calls, excess_s: calls * excess_s >= least_s, profile.steps)
    recordings = evidence.of(Recording)
    if len(recordings) > 1:
        meetings = [each for each in meetings_of([trace_of_recording(each) for each in recordings]) if each.op != "send"]
        steps = len({event.step for event in recordings[0].events}) or 1
        yield from _slow_groups(meetings, RECORDED_SLOWER, RECORDED_CALLS, lambda _, excess_s: excess_s >= RECORDED_LEAST_S, steps)
    for each in evidence.derived(what_ifs):
        yield from _in_table(each)


def _slow_groups(meetings: Iterable[Meeting], slower: float, least_calls: int, matters: object, steps: int) -> Iterator[Hit]:
    """matters: of (number of calls, excess seconds of one), whether they are worth telling."""
    assert callable(matters)
    siblings: dict[tuple[object, ...], dict[tuple[str, tuple[int, ...]], list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in meetings:
        if each.whole:
            siblings[_family(each.group), each.op, each.payload_bytes, len(each.ranks)][each.group, each.ranks].append(each.transfer_s)
    for (_, op, payload_bytes, _), groups in siblings.items():
        if len(groups) < 3:  # of two, either might be the odd one
            continue
        usual_s = median(median(times) for times in groups.values())
        for (group, ranks), times in groups.items():
            mine_s = median(times)
            if len(times) >= least_calls and mine_s >= slower * usual_s and matters(len(times), mine_s - usual_s):
                yield Hit(
                    ranks=ranks, group=group or None, collective=str(op), confidence="high" if len(times) > 2 else "medium",
                    words={"times": f"{mine_s / usual_s:.1f}"},
                    evidence=(
                        f"{len(times)} calls of {format_traffic(float(str(payload_bytes)))} transfer in {format_seconds(mine_s)} (median), "
                        f"those of the {len(groups) - 1} other groups that do the same in {format_seconds(usual_s)}",
                        "Waiting for late ranks is not counted: it is the time from the last rank's arrival on",
                    ),
                    weight=(mine_s - usual_s) * len(times) / steps,
                )  # fmt: skip


def _family(group: str) -> str:
    """``tp.3`` and ``mesh_tp (17)`` without what tells a group from its siblings."""
    return re.sub(r"\s*\(.*\)$|[._]?\d+$", "", group) if not group.startswith("ranks ") else ""


def _in_table(found: WhatIf) -> Iterator[Hit]:
    kinds = {kind: share for kind, share in found.kinds.items() if not kind.endswith("-compute") and kind != "optimizer"}
    if not kinds or found.slowdown < LEAST_SLOWDOWN or max(*found.workers.values(), *found.stages.values()) >= MOST:
        return
    kind = max(kinds, key=lambda each: kinds[each])
    if kinds[kind] < MOST:
        return
    yield Hit(
        collective=kind, group=None, words={"times": f"{found.slowdown:.2f}"},
        evidence=(
            f"Were every {kind} as fast as the median one, {kinds[kind]:.0%} of the loss would go away",
            f"A step loses {format_seconds(found.lost_s)} of {format_seconds(found.played_s)}",
        ),
        weight=found.lost_s,
    )  # fmt: skip
