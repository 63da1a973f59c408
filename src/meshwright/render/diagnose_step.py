"""Where the step goes, as tables: each rank's step, the collectives, and a pipeline's workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meshwright.diagnose.slow.planned import Comparison, planned_against_measured
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.diagnose.slow.step_split import IDLE_CAUSES, StepSplit
from meshwright.diagnose.slow.summary import CollectiveTotal, axes_of, collective_totals
from meshwright.diagnose.slow.what_if import WhatIf, what_ifs
from meshwright.render.text import Column, table
from meshwright.units import format_seconds, format_traffic

if TYPE_CHECKING:
    from meshwright.diagnose.evidence import Evidence

IDLE_WORDS = {"data loading": "idle: data", "host": "idle: host", "device": "idle: other"}

MAX_ROWS = 16
"""Ranks or workers that the text lists; the JSON has all."""


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """One table: for the terminal, and for the report."""

    title: str
    columns: list[Column]
    rows: list[list[object]]
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        return table(self.title, self.columns, self.rows, notes=["", *self.notes] if self.notes else ())


def step_tables(evidence: Evidence, every_row: bool = False) -> Iterator[StepTable]:
    """The tables that the evidence gives; with MAX_ROWS rows of each, or all."""
    most = 10**9 if every_row else MAX_ROWS
    if (profile := evidence.derived(profile_of)) is not None:
        yield _ranks(profile, most)
        if totals := collective_totals(profile, axes_of(evidence)):
            yield _collectives(totals, most)
        if (compared := evidence.derived(planned_against_measured)) is not None:
            yield _against_plan(compared, most)
    for each in evidence.derived(what_ifs):
        yield _workers(each, most)


def shares(split: StepSplit) -> list[tuple[str, float]]:
    """The parts of the window in words; together they are all of it."""
    idle = [(IDLE_WORDS[cause], split.idle_s[cause]) for cause in IDLE_CAUSES]
    return [*split.compute_s.items(), ("exposed", sum(split.exposed_s.values())), *idle]


def _ranks(profile: Profile, most: int) -> StepTable:
    chosen = profile.ranks
    if len(chosen) > most:
        ordered = sorted(chosen, key=lambda rank: profile.waiting_s[rank])
        chosen = tuple(sorted(ordered[: most // 2] + ordered[-most // 2 :]))
    used = [name for name, _ in shares(profile.splits[0]) if any(dict(shares(split))[name] > 0 for split in profile.splits)]
    columns = [Column(name, right=True) for name in ("rank", "step", *used)]
    several = len(profile.ranks) > 1
    if several:
        columns += [Column("waits", right=True), Column("caused", right=True)]
    rows: list[list[object]] = []
    for rank in chosen:
        split = profile.split(rank)
        parts = dict(shares(split))
        row: list[object] = [
            str(rank),
            format_seconds(split.window_s / split.steps),
            *(_share(parts[name], split.window_s) for name in used),
        ]
        if several:
            row += [format_seconds(each[rank] / split.steps) for each in (profile.waiting_s, profile.caused_s)]
        rows.append(row)
    notes = [
        "exposed: communication that no compute hides; idle: the device waits for data, for its host to launch something, or for"
        " something else"
    ]
    if several:
        notes.append("waits: seconds a step for late ranks, inside collectives; caused: what the others wait for this rank, together")
    if len(chosen) < len(profile.ranks):
        notes.append(f"the {len(chosen)} of {len(profile.ranks)} ranks that wait least and most")
    return StepTable(title="Where the step goes", columns=columns, rows=rows, notes=notes)


def _collectives(totals: list[CollectiveTotal], most: int) -> StepTable:
    named, placed = any(each.group for each in totals), any(each.axis for each in totals)
    columns = [
        *([Column("axis")] if placed else []), *([Column("group")] if named else []), Column("op"),
        *(Column(name, right=True) for name in ("calls", "bytes", "exposed", "hidden", "transfer", "waiting")), Column("came last"),
    ]  # fmt: skip
    rows: list[list[object]] = []
    for each in totals[:most]:
        late = ", ".join(f"rank {rank} ({count})" for rank, count in list(each.late.items())[:3])
        seconds = (each.exposed_s, each.hidden_s, each.transfer_s, each.waiting_s)
        size = format_traffic(each.payload_bytes / each.calls) if each.payload_bytes else None
        row: list[object] = [
            each.op,
            f"{each.calls:,}",
            size,
            *(None if value is None else format_seconds(value) for value in seconds),
            late,
        ]
        rows.append([*([each.axis] if placed else []), *([each.group] if named else []), *row])
    return StepTable(title="Collectives, all ranks together (bytes: of a call, mean)", columns=columns, rows=rows)


def _against_plan(compared: Comparison, most: int) -> StepTable:
    """Each collective and phase, measured beside predicted."""
    columns = [
        Column("what"),
        *(Column(name, right=True) for name in ("bytes", "calls", "measured", "predicted", "ratio", "nodes", "planned")),
    ]
    rows: list[list[object]] = [
        [each.phase, None, None, *_seconds(each.measured_s, each.predicted_s), None, None] for each in compared.phases
    ]
    longest = sorted(compared.collectives, key=lambda each: -each.calls * each.measured_s)
    rows += [
        [
            f"{each.axis} {each.op}", format_traffic(each.payload_bytes), f"{each.calls:g}", *_seconds(each.measured_s, each.predicted_s),
            str(each.nodes), str(each.planned_nodes),
        ]
        for each in longest[:most]
    ]  # fmt: skip
    notes = ["phases: compute of a step; collectives: transfer of one call, without waiting; calls: per step and rank"]
    return StepTable(title="Measured against the plan", columns=columns, rows=rows, notes=notes)


def _seconds(measured_s: float, predicted_s: float) -> tuple[str, str, str]:
    return format_seconds(measured_s), format_seconds(predicted_s), f"{measured_s / predicted_s:.2f}" if predicted_s else ""


def _workers(found: WhatIf, most: int) -> StepTable:
    columns = [Column(name, right=True) for name in ("stage", "data rank", "forward", "backward", "waits", "part of the loss")]
    workers = sorted(found.workers, key=lambda each: -found.workers[each])[:most]
    rows: list[list[object]] = [
        [
            str(stage), str(data_rank), *map(format_seconds, found.compute_s[data_rank, stage]), f"{found.waiting[data_rank, stage]:.1%}",
            f"{found.workers[data_rank, stage]:.1%}",
        ]
        for data_rank, stage in sorted(workers, key=lambda each: (each[1], each[0]))
    ]  # fmt: skip
    title = (
        f"{found.steps} steps of {format_seconds(found.played_s)} in the mean; {format_seconds(found.ideal_s)} if nothing were slow: "
        f"{found.slowdown:.3f} times"
    )
    parts = ", ".join(f"{stage} {share:.1%}" for stage, share in found.stages.items())
    return StepTable(title=title, columns=columns, rows=rows, notes=[f"part of the loss that would go away, stage by stage: {parts}"])


def _share(seconds: float, window_s: float) -> str:
    return f"{seconds / window_s:.1%}" if seconds else "-"
