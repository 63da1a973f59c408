"""Detects ``straggler``."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.slow.late import doing
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.diagnose.slow.what_if import WhatIf, what_ifs
from meshwright.units import format_seconds

LEAST_WAITING = 0.05
"""Share of the ranks' time: what a straggling job loses at the least in the fleet of arXiv 2505.05713 is counted from a slowdown of 1.1;
half of that is worth telling."""

MOST = 0.5
"""Share of the loss that one culprit must explain (M_W there)."""

LEAST_SLOWDOWN = 1.05
"""See LEAST_WAITING."""

LONGER = 1.1
"""Times the others' compute, for ranks of a pipeline; see LEAST_SLOWDOWN."""

LEAST_PIPELINE_WAITING = 0.1
"""Share of the ranks' time that waits in messages and collectives together. A healthy bubble may be as much, alike on all."""

STEPS_TO_BE_SURE = 3

LISTED = 12
"""Collectives whose late rank is listed."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """One rank that the others wait for; in a table, one worker whose slowness is most of the loss."""
    if (profile := evidence.derived(profile_of)) is not None:
        yield from _in_profile(profile)
    for each in evidence.derived(what_ifs):
        yield from _in_table(each)


def _in_profile(profile: Profile) -> Iterator[Hit]:
    waited_s = sum(profile.caused_s.values())
    if len(profile.ranks) < 2:
        return
    if waited_s < LEAST_WAITING * profile.window_s:
        yield from _in_pipeline(profile)
        return
    culprit = max(profile.caused_s, key=lambda rank: profile.caused_s[rank])
    share = profile.caused_s[culprit] / waited_s
    if share < MOST or culprit != min(profile.waiting_s, key=lambda rank: profile.waiting_s[rank]):
        return
    worst = max((each for each in profile.collectives if each.late_rank == culprit), key=lambda each: each.waited_s)
    sure = profile.steps >= STEPS_TO_BE_SURE and all(each.whole for each in profile.collectives)
    yield Hit(
        ranks=(culprit,), group=worst.group or None, collective=f"{worst.op} {worst.number}", confidence="high" if sure else "medium",
        words={"lost": f"they wait {waited_s / profile.communicating_s:.1%} of their time in collectives, {share:.0%} of it for that rank"},
        evidence=(*told_of_waiting(profile), _least(profile, culprit), doing(profile, worst)),
        weight=waited_s / len(profile.ranks) / profile.steps,
    )  # fmt: skip


def told_of_waiting(profile: Profile) -> tuple[str, ...]:
    """Transfer against waiting, and who came last to each collective."""
    total_s, waited_s = profile.communicating_s, sum(profile.caused_s.values())
    meetings = profile.collectives
    late = " ".join(str(each.late_rank) for each in meetings[:LISTED]) + (" ..." if len(meetings) > LISTED else "")
    clipped = "" if all(each.whole for each in meetings) else "; traces of some of their ranks are missing, so waiting may be more"
    return (
        f"Waiting is {waited_s / total_s:.1%} of the {format_seconds(total_s)} that {len(profile.ranks)} ranks spent in {len(meetings):,} "
        f"collectives; transfer takes {format_seconds(total_s - waited_s)}{clipped}",
        f"Rank that came last, collective by collective: {late}",
    )


def _in_pipeline(profile: Profile) -> Iterator[Hit]:
    """Where the waiting is in messages: the ranks that compute longest, if they wait least. A pipeline's own bubble is alike on all."""
    computed = {split.rank: sum(split.compute_s.values()) / split.steps for split in profile.splits}
    waiting = profile.all_waiting_s
    longest = max(computed.values())
    slow = tuple(rank for rank, seconds in computed.items() if seconds > LEAST_SLOWDOWN**-1 * longest)
    others = [rank for rank in profile.ranks if rank not in slow]
    if len(others) < len(slow) or sum(waiting.values()) < LEAST_PIPELINE_WAITING * profile.window_s:
        return
    usual = mean(computed[rank] for rank in others)
    if longest < LONGER * usual or max(waiting[rank] for rank in slow) > min(waiting[rank] for rank in others):
        return
    waits = [mean(waiting[rank] for rank in ranks) / profile.steps for ranks in (slow, others)]
    yield Hit(
        ranks=slow, confidence="high" if profile.steps >= STEPS_TO_BE_SURE else "medium",
        words={"lost": f"it computes {longest / usual:.2f} times as long as they do"},
        evidence=(
            f"A step's kernels take it {format_seconds(longest)}, the others {format_seconds(usual)} on average",
            f"In messages and collectives it waits {format_seconds(waits[0])} a step, the others {format_seconds(waits[1])}: who is slow "
            "waits least",
        ),
        weight=longest - usual,
    )  # fmt: skip


def _least(profile: Profile, culprit: int) -> str:
    others = [seconds for rank, seconds in profile.waiting_s.items() if rank != culprit]
    mine = profile.waiting_s[culprit]
    return f"Rank {culprit} waits least: {format_seconds(mine)}, the others {format_seconds(mean(others))} on average"


def _in_table(found: WhatIf) -> Iterator[Hit]:
    worker = max(found.workers, key=lambda each: found.workers[each])
    if found.slowdown < LEAST_SLOWDOWN or min(found.workers[worker], found.computing) < MOST:
        return
    data_rank, stage = worker
    rank = found.graph.rank.get(worker)
    forward_s, backward_s = found.compute_s[worker]
    others = [each for each in found.workers if each != worker and each[1] == stage] or [each for each in found.workers if each != worker]
    usual = [mean(found.compute_s[each][index] for each in others) for index in (0, 1)]
    waits = mean(found.waiting[each] for each in found.workers if each != worker)
    ranks = () if rank is None else (rank,)
    yield Hit(
        ranks=ranks, confidence="high",
        words={"lost": f"the worker (pipeline stage {stage}, data rank {data_rank}) makes the step {found.slowdown:.3f} times longer"},
        evidence=(
            f"The job is {found.slowdown:.3f} times slower than it could be: "
            f"{format_seconds(found.played_s)} a step against {format_seconds(found.ideal_s)} if every operation took its usual time",
            f"Were that worker alone made ordinary, {found.workers[worker]:.1%} of the loss would go away",
            f"Its forward takes {format_seconds(forward_s)} and its backward {format_seconds(backward_s)}, on other workers "
            f"{format_seconds(usual[0])} and {format_seconds(usual[1])}",
            f"It waits for others {found.waiting[worker]:.1%} of the step, the other workers {waits:.1%}: what it delays spreads",
            f"{ranks_text(ranks).capitalize()} stands for all ranks of that worker, {found.steps} steps were looked at",
        ),
        weight=found.lost_s,
    )  # fmt: skip
