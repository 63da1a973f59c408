"""One slow rank in made-up jobs of two kinds of group: what it delays spreads, and it alone is named; healthy jobs are healthy."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.judge import judge
from meshwright.diagnose.slow.cases import trace_of
from meshwright.diagnose.slow.profile import profile_of

STEPS, LAYERS, TRANSFER_MS, COMPUTE_MS = 3, 6, 0.3, 4.0


def traces(ranks: int, slow: dict[int, float], seed: int, noise: float = 0.02) -> Iterator[object]:
    """Ranks in pairs (tp) that reduce after each layer, and over the pairs (dp) at the end of a step; no two clocks agree."""
    dice = random.Random(seed)
    groups = {f"tp.{rank // 2}": [rank, rank + 1] for rank in range(0, ranks, 2)}
    groups |= {f"dp.{place}": list(range(place, ranks, 2)) for place in (0, 1)}
    clock = dict.fromkeys(range(ranks), 0.0)
    spans: dict[int, list[str]] = {rank: [] for rank in range(ranks)}

    def meet(kind: str) -> None:
        for name, members in groups.items():
            if name.startswith(kind):
                end = max(clock[rank] for rank in members) + TRANSFER_MS
                for rank in members:
                    spans[rank].append(f"{name} all_reduce {clock[rank]:.4f}-{end:.4f} 1MB")
                    clock[rank] = end

    for _ in range(STEPS):
        begin = dict(clock)
        for _ in range(LAYERS):
            for rank in range(ranks):
                end = clock[rank] + COMPUTE_MS * slow.get(rank, 1.0) * (1 + noise * dice.random())
                spans[rank].append(f"forward {clock[rank]:.4f}-{end:.4f}")
                clock[rank] = end
            meet("tp")
        meet("dp")
        for rank in range(ranks):
            spans[rank].append(f"step {begin[rank]:.4f}-{clock[rank]:.4f}")
    for rank in range(ranks):
        yield trace_of(rank, ranks, groups, spans[rank])


@pytest.mark.parametrize("seed", range(20))
def test_the_slow_rank_is_named_and_nobody_else(seed: int) -> None:
    dice = random.Random(1000 + seed)
    ranks = dice.choice((4, 6, 8))
    culprit, times = dice.randrange(ranks), dice.choice((1.3, 1.6, 3.0))
    evidence = Evidence(pieces=tuple(traces(ranks, {culprit: times}, seed)))
    headline, *others = judge(evidence).findings
    assert (headline.code, headline.ranks, headline.confidence) == ("straggler", (culprit,), "high")
    assert [finding.code for finding in others if finding.code in ("straggler", "work-imbalance", "slow-link")] == []


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_job_has_no_finding(seed: int) -> None:
    evidence = Evidence(pieces=tuple(traces(random.Random(seed).choice((2, 4, 8)), {}, seed)))
    assert judge(evidence).findings == ()


def test_waiting_and_transfer_are_what_was_planted() -> None:
    evidence = Evidence(pieces=tuple(traces(4, {2: 2.0}, 0, noise=0.0)))
    profile = evidence.derived(profile_of)
    assert profile is not None
    # Times are written with a tenth of a microsecond; the slow rank's partner waits a layer's compute in each layer.
    assert [meeting.transfer_s for meeting in profile.collectives] == pytest.approx(
        [TRANSFER_MS * 1e-3] * len(profile.collectives), abs=2e-7
    )
    assert profile.waiting_s[2] == pytest.approx(0, abs=1e-5)
    assert profile.waiting_s[3] == pytest.approx(STEPS * LAYERS * COMPUTE_MS * 1e-3, rel=1e-3)
    # The other pair computes as long as it should, and waits for both at the end of each step.
    assert profile.waiting_s[0] == pytest.approx(STEPS * LAYERS * COMPUTE_MS * 1e-3, rel=1e-3)
    assert profile.waiting_s[1] == pytest.approx(profile.waiting_s[0], rel=1e-3)
