"""Detects ``slow-link``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from statistics import mean, median

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
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


def _slow_groups(
    meetings: Iterable[Meeting], slower: float, least_calls: int, matters: Callable[[int, float], bool], steps: int
) -> Iterator[Hit]:
    """matters: of (number of calls, excess seconds of one), whether they are worth telling."""
    siblings: dict[tuple[str, str, int, int], dict[tuple[str, tuple[int, ...]], list[float]]] = defaultdict(lambda: defaultdict(list))
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
                    ranks=ranks, group=group or None, collective=op, confidence="high" if len(times) > 2 else "medium",
                    words={"what": f"{_named(op, group, ranks)}, {mine_s / usual_s:.1f} times slower than that of other groups"},
                    evidence=(
                        f"{_times(len(times))} of {format_traffic(payload_bytes)} transfer in {format_seconds(mine_s)} (median), "
                        f"those of the {len(groups) - 1} other groups that do the same in {format_seconds(usual_s)}",
                        "Waiting for late ranks is not counted: it is the time from the last rank's arrival on",
                    ),
                    weight=(mine_s - usual_s) * len(times) / steps,
                )  # fmt: skip


def _times(count: int) -> str:
    return "one call" if count == 1 else f"{count:,} calls"


def _named(op: str, group: str, ranks: tuple[int, ...]) -> str:
    return f"{op} of {group} ({ranks_text(ranks)})" if group else f"{op} of {ranks_text(ranks)}"


def _family(group: str) -> str:
    """``tp.3`` and ``mesh_tp (17)`` without what tells a group from its siblings."""
    return re.sub(r"\s*\(.*\)$|[._]?\d+$", "", group) if not group.startswith("ranks ") else ""


def _in_table(found: WhatIf) -> Iterator[Hit]:
    """Messages, or one kind of collective, that explain half of the loss."""
    if found.slowdown < LEAST_SLOWDOWN:
        return
    shares = {kind: share for kind, share in found.kinds.items() if not kind.endswith(("-compute", "-send")) and kind != "optimizer"}
    shares["messages between stages"] = sum(share for kind, share in found.kinds.items() if kind.endswith("-send"))
    kind = max(shares, key=lambda each: shares[each])
    if shares[kind] < MOST:
        return
    ranks, told = _slowest_messages(found) if kind not in found.kinds else ((), ())
    yield Hit(
        ranks=ranks, collective=kind,
        words={"what": f"{kind} make the step {found.slowdown:.2f} times longer" + (f", those of {ranks_text(ranks)}" if ranks else "")},
        evidence=(
            f"Were every one of the {kind} as fast as the median one, {shares[kind]:.0%} of the loss would go away",
            f"A step loses {format_seconds(found.lost_s)} of {format_seconds(found.played_s)}", *told,
        ),
        weight=found.lost_s,
    )  # fmt: skip


def _slowest_messages(found: WhatIf) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Both ends of the slowest link, and how slow it is."""
    seconds: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for node, duration in zip(found.graph.nodes, found.graph.duration_s, strict=True):
        if node.kind.endswith("-send"):
            there = node.stage + (1 if node.kind.startswith("forward") else -1)
            seconds[node.data_rank, min(node.stage, there), max(node.stage, there)].append(float(duration.mean()))
    means = {link: mean(each) for link, each in seconds.items()}
    data_rank, *ends = worst = max(means, key=lambda link: means[link])
    ranks = tuple(found.graph.rank[data_rank, stage] for stage in ends if (data_rank, stage) in found.graph.rank)
    usual_s = median(means.values())
    told = (
        f"Messages between stages {ends[0]} and {ends[1]} of data rank {data_rank} take {format_seconds(means[worst])}, "
        f"those of other links {format_seconds(usual_s)} (median)"
    )
    return ranks, (told,)
