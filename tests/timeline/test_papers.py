"""Bubbles and memory as the papers on pipeline schedules state them, from the simulated timelines.

Symbols: F, B (whole backward), I and W (its halves), p ranks, m micro-batches, v chunks per rank.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from meshwright.schedule import PassTimes, build
from meshwright.schedule.in_flight import count_in_flight
from meshwright.timeline import Timeline, simulate, uniform_costs


def timeline(name: str, p: int, m: int, v: int = 1, times: PassTimes | None = None, saving: float = 0.0) -> Timeline:
    times = times or PassTimes()
    schedule = build(name, p, v, m, times)
    passes = (np.asarray(x) / v for x in (times.forward, times.backward_input, times.backward_weight))
    return simulate(schedule, uniform_costs(schedule, *passes, times.transfer, saving))


@pytest.mark.parametrize("m", [8, 16, 32, 64])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_of_gpipe_and_1f1b(name: str, m: int) -> None:
    """(p-1)/(m+p-1): 3/11, 3/19, 3/35, 3/67 (arXiv 1811.06965 section 2.3, arXiv 2104.04473 section 2.2.1)."""
    assert timeline(name, 4, m).bubble_fraction == pytest.approx(Fraction(3, m + 3), abs=1e-12)


@pytest.mark.parametrize(("p", "m", "v"), [(4, 16, 2), (4, 8, 3), (8, 8, 2), (2, 6, 5)])
def test_bubble_of_interleaved(p: int, m: int, v: int) -> None:
    """(p-1)/(v m+p-1), 3/35 for p=4, m=16, v=2 (arXiv 2104.04473 section 2.2.2)."""
    assert timeline("interleaved", p, m, v).bubble_fraction == pytest.approx((p - 1) / (v * m + p - 1), abs=1e-12)


def test_naive_keeps_one_rank_busy() -> None:
    assert timeline("naive", 4, 8).bubble_fraction == pytest.approx(3 / 4)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 32), (8, 4)])
def test_1f1b_holds_p_minus_stage_micro_batches(p: int, m: int) -> None:
    assert count_in_flight(build("1f1b", p, 1, m)).tolist() == [min(p - stage, m) for stage in range(p)]


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 3), (8, 2), (2, 4)])
def test_interleaving_holds_1_plus_p_minus_1_over_p_v_times_as_much(p: int, v: int) -> None:
    """The first rank, of p micro-batches on its v chunks (arXiv 2205.05198 section 4.2.3); never more than all m."""
    assert count_in_flight(build("interleaved", p, v, 4 * p))[0] == pytest.approx((1 + (p - 1) / (p * v)) * p * v)
    assert count_in_flight(build("interleaved", p, v, p))[0] == p * v


TIMES = [PassTimes(1, 1, 1), PassTimes(1, 1.2, 0.8), PassTimes(1, 1.1, 0.9), PassTimes(1, 1.5, 0.5)]


@pytest.mark.parametrize("times", TIMES, ids=lambda t: f"{t.forward}-{t.backward_input}-{t.backward_weight}")
@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 12), (8, 32)])
def test_bubbles_of_the_zero_bubble_paper(p: int, m: int, times: PassTimes) -> None:
    """arXiv 2401.10241 Table 2, W <= I: (p-1)(F+I+W), (p-1)(F+I-W), (p-1)(F+I-2W); memory p, p, 2p-1 micro-batches.

    Its bubbles are those inside the longest rank's own window: its optimizer steps are not synchronised.
    """
    f, i, w = float(times.forward), float(times.backward_input), float(times.backward_weight)
    for name, bubble, held in [("1f1b", f + i + w, p), ("zb-h1", f + i - w, p), ("zb-h2", f + i - 2 * w, 2 * p - 1)]:
        found = timeline(name, p, m, times=times)
        assert found.rank_span_s.max() - m * (f + i + w) == pytest.approx((p - 1) * bubble), name
        assert count_in_flight(found.schedule).max() == held, name


TABLE_5 = {"1f1b": 0.2431, "zb-h1": 0.1585, "zb-h2": 0.1083, "zb-1p": 0.1585, "zb-2p": 0.0433}
"""arXiv 2401.10241 Table 5, the 1.5 B model on 8 ranks with 24 micro-batches; its profiled times in milliseconds are below."""


@pytest.mark.parametrize("name", TABLE_5)
def test_bubble_rates_of_table_5(name: str) -> None:
    """Bubble rate = (cost - m (F+I+W)) / cost. Printed with four digits, from times that are printed with three decimals."""
    hidden, heads, seq = 2304, 24, 1024
    share = 32 * hidden / (34 * hidden + 5 * heads * seq)  # Table 1: what W needs of what I needs
    times = PassTimes(18.522, 18.086, 9.337, 0.601, share)
    cost = float(timeline(name, 8, 24, times=times).rank_span_s.max())
    assert 1 - 24 * (18.522 + 18.086 + 9.337) / cost == pytest.approx(TABLE_5[name], abs=1e-4)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 20), (8, 16)])
def test_zb_v_has_no_bubble_in_1f1bs_memory(p: int, m: int) -> None:
    """arXiv 2405.15362, F = I = W: none inside a rank's window; every rank holds what 1F1B's first one does, p micro-batches."""
    found = timeline("zb-v", p, m, 2)
    assert found.rank_span_s.max() == pytest.approx(float(found.busy_s[0]))
    assert (count_in_flight(found.schedule) / 2).tolist() == [p] * p


@pytest.mark.parametrize("saving", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 20), (8, 16), (8, 40)])
def test_bubble_of_dualpipe(p: int, m: int, saving: float) -> None:
    """arXiv 2412.19437 Table 2: (PP/2-1)(F&B + B - 3W), parameters twice, PP+1 activations; F&B = F + B - saving, F = I = W.

    Only the middle ranks, which run the most pairs, idle that long; the outer ones have more work that is not paired.
    """
    found = timeline("dualpipe", p, m, saving=saving)
    f, b, w = 1.0, 2.0, 1.0
    idle = found.span_s - found.busy_s
    assert idle.max() == pytest.approx((p / 2 - 1) * ((f + b - saving) + b - 3 * w))
    assert (count_in_flight(found.schedule) == p + 1).all()
    held = [sorted(c % p for c in range(2 * p) if found.schedule.rank_of_chunk[c] == rank) for rank in range(p)]
    assert held == [sorted((rank, p - 1 - rank)) for rank in range(p)]


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 13), (8, 20)])
def test_dualpipe_v_is_dualpipe_on_half_the_ranks(p: int, m: int) -> None:
    """The repository of DualPipe states (PP/2-1)(F&B + B - 3W) with PP chunks on PP/2 devices, PP+1 activations, parameters once."""
    found = timeline("dualpipe-v", p, m, 2, PassTimes(2, 2, 2))
    chunks = 2 * p
    assert (found.span_s - found.busy_s).max() == pytest.approx((chunks / 2 - 1) * (3 + 2 - 3))
    assert (count_in_flight(found.schedule) == chunks + 1).all()
    assert sorted(found.schedule.rank_of_chunk) == sorted([*range(p), *range(p)])


@pytest.mark.parametrize(("m", "slowdown"), [(8, 1.080), (32, 1.215), (128, 1.276)])
def test_one_slow_stage_of_eight(m: int, slowdown: float) -> None:
    """Stage 3 takes 1.3 times as long, 1F1B with b = 2f: three digits, by hand."""
    from meshwright.timeline import Slow, culprit, slow_down

    schedule = build("1f1b", 8, 1, m)
    costs = uniform_costs(schedule)
    slow = simulate(schedule, slow_down(schedule, costs, Slow(1.3, stage=3)))
    assert slow.span_s / simulate(schedule, costs).span_s == pytest.approx(slowdown, abs=5e-4)
    assert culprit(slow) == 3
