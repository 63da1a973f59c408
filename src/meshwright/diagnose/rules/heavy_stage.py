"""Detects ``heavy-stage``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import mean

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.rules.straggler import LEAST_SLOWDOWN, MOST
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.diagnose.slow.what_if import WhatIf, what_ifs
from meshwright.job import Job
from meshwright.mesh import Mesh
from meshwright.units import format_seconds

HEAVIER = 1.1
"""A stage of traces counts as heavy if its lightest rank computes this much longer than the mean of the other stages (arXiv 2505.05713
counts a job as straggling from a slowdown of 1.1)."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """A stage whose ranks are all slower than those of other stages, and no single worker to blame."""
    for each in evidence.derived(what_ifs):
        yield from _in_table(each)
    profile = evidence.derived(profile_of)
    if profile is not None and evidence.plan is not None and evidence.plan.layouts and evidence.plan.layout.pp > 1:
        yield from _in_profile(profile, evidence.plan)


def _in_table(found: WhatIf) -> Iterator[Hit]:
    stage = max(found.stages, key=lambda each: found.stages[each])
    if found.slowdown < LEAST_SLOWDOWN or min(found.stages[stage], found.computing) < MOST or max(found.workers.values()) >= MOST:
        return
    stages = _by_stage(found.compute_s)
    others = [each for each in stages if each != stage]
    usual = [mean(stages[each][index] for each in others) for index in (0, 1)]
    last = stage == max(stages)
    waits = [mean(share for (_, at), share in found.waiting.items() if (at == stage) == here) for here in (True, False)]
    yield Hit(
        ranks=tuple(rank for (_, at), rank in found.graph.rank.items() if at == stage),
        words={"stage": _named(stage, last), "lost": f"{found.slowdown:.3f} times slower", **_remedy(stage, last)},
        evidence=(
            f"The job is {found.slowdown:.3f} times slower than with equal stages: {format_seconds(found.played_s)} a step against "
            f"{format_seconds(found.ideal_s)}",
            f"Were stage {stage} made ordinary, {found.stages[stage]:.1%} of the loss would go away; none of its workers alone explains "
            f"more than {max(max(found.workers.values()), 0):.1%}",
            f"A micro-batch takes it {format_seconds(stages[stage][0])} forward and {format_seconds(stages[stage][1])} backward, the other "
            f"stages {format_seconds(usual[0])} and {format_seconds(usual[1])} on average",
            f"Its workers wait for others {waits[0]:.1%} of the step, those of the other stages {waits[1]:.1%}",
        ),
        weight=found.lost_s,
    )  # fmt: skip


def _by_stage(compute_s: Mapping[tuple[int, int], tuple[float, float]]) -> dict[int, tuple[float, float]]:
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (_, stage), seconds in compute_s.items():
        found[stage].append(seconds)
    return {stage: (mean(each[0] for each in all_of_it), mean(each[1] for each in all_of_it)) for stage, all_of_it in found.items()}


def _in_profile(profile: Profile, plan: Job) -> Iterator[Hit]:
    mesh = Mesh(plan.layout)
    by_stage: dict[int, dict[int, float]] = defaultdict(dict)
    for split in profile.splits:
        if split.rank < mesh.world_size:
            by_stage[mesh.coordinates(split.rank)["pp"]][split.rank] = sum(split.compute_s.values()) / split.steps
    if len(by_stage) < 2:
        return
    stage = max(by_stage, key=lambda each: min(by_stage[each].values()))
    usual = mean(seconds for each, ranks in by_stage.items() if each != stage for seconds in ranks.values())
    least = min(by_stage[stage].values())
    if least < HEAVIER * usual or len(by_stage[stage]) < 2:
        return
    last = stage == plan.layout.pp - 1
    yield Hit(
        ranks=tuple(by_stage[stage]), confidence="high" if profile.steps > 1 else "medium",
        words={"stage": _named(stage, last), "lost": f"{least / usual:.2f} times the others' compute", **_remedy(stage, last)},
        evidence=(
            f"Each of its {len(by_stage[stage])} ranks computes for at least {format_seconds(least)} a step, those of the other stages for "
            f"{format_seconds(usual)} on average",
        ),
        weight=least - usual,
    )  # fmt: skip


def _named(stage: int, last: bool) -> str:
    return f"{'the last pipeline stage' if last else 'pipeline stage'}{f' ({stage})' if last else f' {stage}'}"


def _remedy(stage: int, last: bool) -> dict[str, object]:
    if last:
        return {"because": "the last stage also holds the head and the loss, whose cost grows with the vocabulary"}
    if stage == 0:
        return {"because": "the first stage also holds the embedding"}
    return {"because": "layers differ in cost, or this stage has more of them"}
