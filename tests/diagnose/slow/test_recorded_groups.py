"""Our own recordings: a group that is far slower than its siblings is told; ranks that share a few cores are not."""

from __future__ import annotations

import random

import pytest

from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.judge import judge
from meshwright.recording.events import Event, Group, Header
from meshwright.recording.read import Recording

CALLS, RANKS = 12, 8


def recordings(slow: int | None, times: float, seed: int = 0, late: int | None = None) -> tuple[Recording, ...]:
    """Four groups of two that reduce the same; calls take 5 ms, up to twice that by chance, those of group ``slow`` times as long."""
    dice = random.Random(seed)
    found: dict[int, list[Event]] = {rank: [] for rank in range(RANKS)}
    groups = [Group(name=f"tp.{place}", axis="tp", ranks=(2 * place, 2 * place + 1)) for place in range(RANKS // 2)]
    for number in range(CALLS):
        for place, group in enumerate(groups):
            transfer_s = 0.005 * (1 + dice.random()) * (times if place == slow else 1)
            waits_s = {rank: 0.2 if rank != late and late in group.ranks else 0.0 for rank in group.ranks}
            for rank in group.ranks:
                begin = number + 0.2 - waits_s[rank]
                found[rank].append(
                    Event(
                        index=number, kind="collective", step=number // 4, op="all_reduce", reduce_op="sum", group=group.name, seq=number,
                        dtype="float32", shape=(8,), payload_bytes=32, call_site="model.py:1", enqueued_s=begin,
                        completed_s=number + 0.2 + transfer_s,
                    )
                )  # fmt: skip
    return tuple(
        Recording(header=Header(world_size=RANKS, rank=rank, groups=(groups[rank // 2],)), events=tuple(events))
        for rank, events in found.items()
    )


@pytest.mark.parametrize("slow", range(RANKS // 2))
def test_a_slow_group_is_named(slow: int) -> None:
    (finding,) = judge(Evidence(pieces=recordings(slow, 10.0))).findings
    assert (finding.code, finding.ranks, finding.group) == ("slow-link", (2 * slow, 2 * slow + 1), f"tp.{slow}")


@pytest.mark.parametrize("seed", range(10))
def test_chance_is_not_told(seed: int) -> None:
    assert judge(Evidence(pieces=recordings(None, 1.0, seed))).findings == ()


def test_a_late_rank_is_no_slow_link() -> None:
    assert judge(Evidence(pieces=recordings(None, 1.0, late=3))).findings == ()
