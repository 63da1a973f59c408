"""What the plan says of what was measured: the axis that a group is of, the seconds a collective should take, and why it takes more."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any

from meshwright.collectives.price import Group, collective_s
from meshwright.diagnose.slow.meetings import Meeting
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.estimate import priced
from meshwright.explain.rows import explain_rows
from meshwright.mesh import Mesh
from meshwright.spec.rules.rule import kv_heads

if TYPE_CHECKING:
    from meshwright.diagnose.evidence import Evidence
    from meshwright.job import Job
    from meshwright.priced import Priced

__all__ = ["Compared", "ComparedPhase", "Comparison", "compare_with_plan", "planned_against_measured"]

AXES = ("tp", "cp", "ep", "etp", "dp_shard", "fsdp", "dp_cp", "dp", "dp_replicate", "pp", "edp", "world")
"""Axes that a group may be of, the likelier one of equal ranks first."""

WORDS = (
    ("tp", r"\btp\b|tensor"), ("cp", r"\bcp\b|context|ring|ulysses"), ("ep", r"\bep\b|expert"), ("pp", r"\bpp\b|pipe"),
    ("fsdp", r"fsdp|shard"), ("dp", r"\bdp\b|data|replicate"),
)  # fmt: skip
"""Words of torch's and the frameworks' descriptions of groups (``mesh_tp``, ``TENSOR_MODEL_PARALLEL_GROUP``)."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The calls of one op with one payload over one axis.

    Attributes:
        axis: of the mesh. group, ranks: of one of the groups, that which took longest.
        calls: per step and rank. measured_s, predicted_s: of the transfer of one call.
        nodes: nodes that the group spans, as its ranks are numbered; planned_nodes: as the plan has it.
        as_placed_s: what the plan's cluster would take for a group of such ranks.
    """

    axis: str
    op: str
    payload_bytes: int
    group: str
    ranks: tuple[int, ...]
    calls: float
    measured_s: float
    predicted_s: float
    nodes: int
    planned_nodes: int
    as_placed_s: float


@dataclass(frozen=True, kw_only=True)
class ComparedPhase:
    """Seconds that a rank computes in a phase of a step."""

    phase: str
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """collectives: those whose axis and payload are known. phases: of computing; empty where the traces do not tell them apart.
    axes: of the groups, by their names."""

    collectives: tuple[Compared, ...]
    phases: tuple[ComparedPhase, ...]
    step_s: float
    axes: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Every collective and phase, measured beside predicted."""
        return {"collectives": [asdict(each) for each in self.collectives], "phases": [asdict(each) for each in self.phases]}


def planned_against_measured(evidence: Evidence) -> Comparison | None:
    """Of the traces that were read with the plan that was given, if both are there."""
    profile, plan = evidence.derived(profile_of), evidence.plan
    if profile is None or plan is None or not plan.layouts or plan.cluster is None or plan.workload is None:
        return None
    return compare_with_plan(profile, plan)


def compare_with_plan(profile: Profile, plan: Job) -> Comparison:
    """What was measured beside what was predicted."""
    assert plan.cluster is not None and plan.workload is not None
    numbers = priced(plan.model, plan.cluster, plan.workload, plan.layout, plan.stack)
    mesh = Mesh(plan.layout, kv_heads=kv_heads(plan.model))
    by_kind: dict[tuple[str, str, int], list[Meeting]] = defaultdict(list)
    axes: dict[str, str] = {}
    for meeting in profile.meetings:
        axis = _axis(meeting, mesh)
        if axis is not None and meeting.group:
            axes.setdefault(meeting.group, axis)
        if axis is not None and meeting.payload_bytes:
            by_kind[axis, meeting.op, meeting.payload_bytes].append(meeting)
    collectives = [_compared(numbers, mesh, profile, kind, meetings) for kind, meetings in by_kind.items()]
    return Comparison(
        collectives=tuple(each for each in collectives if each is not None),
        phases=tuple(_phases(profile, numbers)),
        step_s=mean(split.window_s / split.steps for split in profile.splits),
        axes=axes,
    )


def _axis(meeting: Meeting, mesh: Mesh) -> str | None:
    """By the group's ranks; else by its name."""
    ranks = tuple(sorted(meeting.ranks))
    if meeting.op == "send":
        return "pp" if mesh.degree("pp") > 1 else None
    if ranks[-1] < mesh.world_size:
        for axis in AXES:
            if axis == "world":
                if len(ranks) == mesh.world_size:
                    return "world"
            elif mesh.degree(axis) == len(ranks) and tuple(sorted(mesh.group_of(ranks[0], axis))) == ranks:
                return axis
    name = meeting.group.lower().replace("_", " ")
    return next((axis for axis, words in WORDS if re.search(words, name) and mesh.degree(axis) == len(ranks)), None)


def _compared(numbers: Priced, mesh: Mesh, profile: Profile, kind: tuple[str, str, int], meetings: Sequence[Meeting]) -> Compared | None:
    axis, op, payload_bytes = kind
    try:
        predicted_s = float(numbers.call_s(op, axis, payload_bytes))
    except KeyError:  # an op that the price list does not have, such as a barrier
        return None
    worst = max(meetings, key=lambda each: each.transfer_s)
    size = numbers.cluster.gpus_per_node
    planned = mesh.group_of(worst.ranks[0], axis) if worst.ranks[0] < mesh.world_size and axis != "world" else range(mesh.world_size)
    per_rank = sum(len(each.duration_s) for each in meetings) / len({rank for each in meetings for rank in each.duration_s})
    return Compared(
        axis=axis, op=op, payload_bytes=payload_bytes, group=worst.group, ranks=worst.ranks,
        calls=per_rank / profile.steps, measured_s=mean(each.transfer_s for each in meetings), predicted_s=predicted_s,
        nodes=_units(worst.ranks, size), planned_nodes=_units(planned, size),
        as_placed_s=_placed_s(numbers, op, axis, payload_bytes, worst.ranks),
    )  # fmt: skip


def _units(ranks: Sequence[int], size: int) -> int:
    return len({rank // size for rank in ranks})


def _placed_s(numbers: Priced, op: str, axis: str, payload_bytes: int, ranks: Sequence[int]) -> float:
    """The price for a group of these very ranks, numbered node by node."""
    tiers = numbers.cluster.tiers
    sizes = [tier.size or numbers.ledger.layout.world_size for tier in tiers[:-1]]
    members = [max(sum(other // size == rank // size for other in ranks) for rank in ranks) for size in sizes]
    alone = float(collective_s(op, payload_bytes, Group(len(ranks), (*members, len(ranks))), tiers))
    planned = float(numbers.fabric.seconds(op, axis, payload_bytes))
    # What a training step takes over a benchmark of the collective, as the plan has it for this axis.
    return alone * (float(numbers.call_s(op, axis, payload_bytes)) / planned if planned else 1.0)


def _phases(profile: Profile, numbers: Priced) -> Iterator[ComparedPhase]:
    """Compute by phase, mean over ranks; only where kernels tell forward from backward."""
    measured: Mapping[str, float] = {
        phase: mean(split.compute_s[phase] / split.steps for split in profile.splits) for phase in profile.splits[0].compute_s
    }
    if not measured["backward"]:
        return
    world = numbers.ledger.layout.world_size
    predicted: dict[str, float] = defaultdict(float)
    ranks = [rank for rank in profile.ranks if rank < world]
    for rank in ranks:
        for row in explain_rows(numbers, rank).rows:
            if row.op is None:
                phase = {"forward": "forward", "optimizer": "optimizer"}.get(row.phase, "backward")
                predicted[phase] += row.times * row.each_s / len(ranks)
    for phase, seconds in measured.items():
        if predicted[phase] and seconds:
            yield ComparedPhase(phase=phase, measured_s=seconds, predicted_s=predicted[phase])
