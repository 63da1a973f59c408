"""Where the step goes, in figures: what the text, the JSON and the report show beside the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.diagnose.slow.planned import planned_against_measured
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.diagnose.slow.step_split import group_label, op_of
from meshwright.diagnose.slow.what_if import WhatIf, what_ifs

if TYPE_CHECKING:
    from meshwright.diagnose.evidence import Evidence

__all__ = ["CollectiveTotal", "axes_of", "collective_totals", "step_json"]

MOST_LATE = 10_000
"""Collectives whose late rank is in the JSON, the first ones."""


@dataclass(frozen=True, kw_only=True)
class CollectiveTotal:
    """All calls of one op in groups of one name.

    Attributes:
        axis: of the mesh, "" if no plan tells. calls: of all ranks that were traced. exposed_s, hidden_s: of all ranks together.
        transfer_s, waiting_s: of all ranks together; None where no other rank's trace is there to tell them apart.
        late: how often each rank came last.
    """

    group: str
    axis: str
    op: str
    calls: int
    payload_bytes: int
    exposed_s: float
    hidden_s: float
    transfer_s: float | None
    waiting_s: float | None
    late: Mapping[int, int]

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.group or None, "axis": self.axis or None, "op": self.op, "calls": self.calls, "payload_bytes": self.payload_bytes,
            "exposed_s": self.exposed_s, "hidden_s": self.hidden_s, "transfer_s": self.transfer_s, "waiting_s": self.waiting_s,
            "late_ranks": {str(rank): count for rank, count in self.late.items()},
        }  # fmt: skip


def axes_of(evidence: Evidence) -> Mapping[str, str]:
    """The mesh axis of each group, by its name, as far as a plan tells."""
    compared = evidence.derived(planned_against_measured)
    return {} if compared is None else compared.axes


def collective_totals(profile: Profile, axes: Mapping[str, str]) -> list[CollectiveTotal]:
    """By (group, op), the longest first."""
    kinds = {kind for split in profile.splits for kind in split.exposed_s}
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for trace in profile.traces:
        for each in trace.communications:
            counts[group_label(each), op_of(each)] += 1
            sizes[group_label(each), op_of(each)] += each.call.payload_bytes
    found = []
    for group, op in kinds:
        met = [each for each in profile.meetings if each.op == ("send" if op == "recv" else op) and each.group == group]
        found.append(
            CollectiveTotal(
                group=group, axis=axes.get(group, ""), op=op, calls=counts[group, op], payload_bytes=sizes[group, op],
                exposed_s=sum(split.exposed_s.get((group, op), 0.0) for split in profile.splits),
                hidden_s=sum(split.hidden_s.get((group, op), 0.0) for split in profile.splits),
                transfer_s=sum(each.transfer_s * len(each.duration_s) for each in met) if met else None,
                waiting_s=sum(each.waited_s for each in met) if met else None,
                late=dict(Counter(each.late_rank for each in met).most_common()),
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: -each.exposed_s - each.hidden_s)


def step_json(evidence: Evidence) -> dict[str, Any]:
    """``step`` for traces, ``plan`` for traces beside a plan, ``pipelines`` for tables; no key where there is nothing of the kind."""
    answer: dict[str, Any] = {}
    if (profile := evidence.derived(profile_of)) is not None:
        answer["step"] = {
            "ranks": [_rank_json(profile, rank) for rank in profile.ranks],
            "communicating_s": profile.communicating_s,
            "transfer_s": profile.communicating_s - sum(profile.caused_s.values()),
            "waiting_s": sum(profile.caused_s.values()),
            "late_ranks": [each.late_rank for each in profile.collectives[:MOST_LATE]],
            "collectives": [each.as_json() for each in collective_totals(profile, axes_of(evidence))],
        }
    if (compared := evidence.derived(planned_against_measured)) is not None:
        answer["plan"] = compared.as_json()
    if tables := evidence.derived(what_ifs):
        answer["pipelines"] = [_table_json(each) for each in tables]
    return answer


def _rank_json(profile: Profile, rank: int) -> dict[str, Any]:
    split = profile.split(rank)
    return {
        "rank": rank, "window_s": split.window_s, "steps": split.steps, "compute_s": split.compute_s,
        "exposed_s": sum(split.exposed_s.values()), "hidden_s": sum(split.hidden_s.values()), "idle_s": split.idle_s,
        "data_loading_s": split.loading_s, "waiting_s": profile.waiting_s[rank], "caused_s": profile.caused_s[rank],
    }  # fmt: skip


def _table_json(found: WhatIf) -> dict[str, Any]:
    return {
        "slowdown": found.slowdown, "played_s": found.played_s, "ideal_s": found.ideal_s, "traced_s": found.traced_s, "steps": found.steps,
        "workers": [
            {
                "data_rank": data_rank, "stage": stage, "rank": found.graph.rank.get((data_rank, stage)), "share_of_loss": share,
                "waiting_share": found.waiting[data_rank, stage], "forward_s": found.compute_s[data_rank, stage][0],
                "backward_s": found.compute_s[data_rank, stage][1],
            }
            for (data_rank, stage), share in found.workers.items()
        ],
        "stages": {str(stage): share for stage, share in found.stages.items()}, "operations": dict(found.kinds),
    }  # fmt: skip
