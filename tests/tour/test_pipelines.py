"""Bubbles, what a stage holds, and what one slow stage costs: simulated schedules and the ledger's messages."""

from __future__ import annotations

from fractions import Fraction

import pytest

import meshwright as mw
from meshwright.memory import in_flight
from meshwright.schedule import build, check
from meshwright.timeline import Slow, simulate, slow_down, uniform_costs
from tour.jobs import LLAMA_70B, by_axis


def bubble(name: str, p: int, v: int, m: int) -> Fraction:
    """Idle share of a schedule whose backward takes twice its forward, messages free; a fraction with a small denominator."""
    schedule = build(name, p, v, m)
    found = simulate(schedule, uniform_costs(schedule)).bubble_fraction
    exact = Fraction(found).limit_denominator(1000)
    assert float(exact) == pytest.approx(found, abs=1e-12)  # sums of floats
    return exact


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("m", "expected"), [(8, Fraction(3, 11)), (16, Fraction(3, 19)), (32, Fraction(3, 35)), (64, Fraction(3, 67))])
def test_bubble_of_four_stages(name: str, m: int, expected: Fraction) -> None:
    """(p-1)/(m+p-1), the same for both (arXiv 1811.06965 section 2.3; arXiv 2104.04473 section 2.2, as a share of the span)."""
    assert bubble(name, 4, 1, m) == expected


def test_interleaving_divides_the_bubble() -> None:
    """(p-1)/(v m + p-1) = 3/35 for p=4 m=16 v=2: the idle time is halved (arXiv 2104.04473, section 2.2)."""
    assert bubble("interleaved", 4, 2, 16) == Fraction(3, 35)


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 16), (8, 2, 64), (8, 4, 32), (35, 3, 280)])
def test_interleaving_holds_more(p: int, v: int, m: int) -> None:
    """1 + (p-1)/(p v) times the p micro-batches of 1F1B on the first rank (arXiv 2205.05198, section 4.2.3)."""
    assert in_flight("interleaved", 0, p, v, m) / v == pytest.approx(p * (1 + (p - 1) / (p * v)), rel=1e-12)


def test_interleaving_never_holds_more_than_there_are() -> None:
    assert in_flight("interleaved", 0, 4, 2, 4) / 2 == 4 < 4 * (1 + 3 / 8)


def test_interleaving_multiplies_the_messages() -> None:
    """Every rank has v chunks, and so v times the boundaries; the ring of chunks adds the way from the last rank to the first."""
    once, twice = (mw.explain(LLAMA_70B, cluster="h100-sxm", layout=f"tp=8 sp {pp} dp=8 mb=1", seq=8192, batch=512, rank=64)
                   for pp in ("pp=4", "pp=4:interleaved*2"))  # fmt: skip
    sends = [sum(row.times for row in found.rows if row.op == "send") for found in (once, twice)]
    assert sends[1] == 2 * sends[0]


def test_what_1f1b_holds() -> None:
    """min(p - stage, m), not p everywhere; counted from the lists, too."""
    p, m = 4, 16
    expected = [min(p - stage, m) for stage in range(p)]
    assert [in_flight("1f1b", stage, p, 1, m) for stage in range(p)] == expected
    assert check(build("1f1b", p, 1, m)).in_flight_chunks == tuple(expected)


def test_dualpipe_holds_two_copies_and_one_more_micro_batch() -> None:
    """Twice the parameters, p + 1 activations (arXiv 2412.19437, table 2); DualPipe-V the same on half the devices, one copy."""
    p = 4
    assert {in_flight("dualpipe", stage, p, 1, 16) for stage in range(p)} == {p + 1}
    report = {
        pp: mw.memory(LLAMA_70B, cluster="h100-sxm", layout=f"tp=8 {pp} dp=4 mb=1", seq=8192, batch=64) for pp in ("pp=4", "pp=4:dualpipe")
    }
    # Stages 1 and 2 are layers only, in both directions.
    weights = [report[pp].stages[1].categories["weights"] for pp in report]
    assert weights[1] == 2 * weights[0]


@pytest.mark.parametrize(("m", "expected"), [(8, 1.080), (32, 1.215), (128, 1.276)])
def test_a_slow_stage(m: int, expected: float) -> None:
    """A stage 1.3 times slower among 8, 1F1B: nearer to 1.3 the more micro-batches there are. Figures printed with three decimals."""
    schedule = build("1f1b", 8, 1, m)
    costs = uniform_costs(schedule)
    slow = simulate(schedule, slow_down(schedule, costs, Slow(1.3, stage=3)))
    assert slow.span_s / simulate(schedule, costs).span_s == pytest.approx(expected, abs=0.0005)


def test_pipeline_messages_are_a_hidden_state() -> None:
    """b s h words per boundary and micro-batch, cut by tp with sp."""
    for layout, cut in (("tp=8 pp=4 dp=8 mb=1", 1), ("tp=8 sp pp=4 dp=8 mb=1", 8)):
        line = by_axis(LLAMA_70B, layout, 512).line("pp")
        assert line.payload_bytes % (64 * 8192 * 8192 * 2 // cut) == 0
        assert line.collectives["send"] > 0
