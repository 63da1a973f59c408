"""The closed forms against the simulator, which is exact, and arrays of layouts against single ones."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.schedule import PassTimes, build
from meshwright.schedule.closed_form import pipeline_span_s
from meshwright.timeline import simulate, uniform_costs

# Seconds of forward, backward-input, backward-weight: equal; the usual b = 2f; cheap and dear weight halves; recompute.
PASSES = [(1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.0, 1.0, 0.5), (1.0, 0.8, 1.2), (1.0, 2.0, 1.0)]
TRANSFERS = [0.0, 0.02, 0.1]
CHUNKS = {"interleaved": 3, "zb-v": 2, "dualpipe-v": 2}
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-1p", "zb-h2", "zb-v", "dualpipe", "dualpipe-v")


def gap(name, p, m, forward, backward_input, backward_weight, transfer=0.0, overlap=True, saving=0.0) -> float:  # type: ignore[no-untyped-def]
    """Closed form / simulator - 1; durations are numbers or one per stage, a message's is a number or one per boundary."""
    v = CHUNKS.get(name, 1)
    one_by_one = [list(x) if np.ndim(x) else x for x in (forward, backward_input, backward_weight)]
    schedule = build(name, p, v, m, PassTimes(*one_by_one, float(np.mean(transfer))))
    costs = uniform_costs(schedule, forward, backward_input, backward_weight, np.append(transfer, 0.0) if np.ndim(transfer) else transfer,
                          saving, overlap)  # fmt: skip
    stages = [np.full(p * v, x) if np.ndim(x) == 0 else x for x in (forward, backward_input, backward_weight)]
    formula = pipeline_span_s(name, *stages, m, p, v, transfer, overlap, saving)
    return float(formula) / simulate(schedule, costs).span_s - 1.0


def sizes(name: str) -> list[tuple[int, int]]:
    """(p, m): few and many micro-batches, as far as the schedule takes them."""
    if name == "interleaved":
        return [(1, 3), (2, 2), (2, 8), (4, 4), (4, 16), (8, 64)]
    if name == "dualpipe":
        return [(2, 4), (2, 10), (4, 8), (4, 24), (8, 16), (8, 48)]
    if name == "dualpipe-v":
        return [(1, 3), (2, 4), (3, 10), (4, 8), (4, 25), (8, 16)]
    return [(1, 3), (2, 1), (2, 5), (4, 2), (4, 5), (4, 16), (8, 3), (8, 12), (8, 64)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_equal_stages(name: str) -> None:
    """Equal to the last few bits where messages are free, within a hundredth (the bound that the search relies on) otherwise."""
    for p, m in sizes(name):
        for passes in PASSES:
            assert abs(gap(name, p, m, *passes)) < 1e-12, (p, m, passes)
            for transfer in TRANSFERS[1:]:
                assert abs(gap(name, p, m, *passes, transfer)) < 0.01, (p, m, passes, transfer)


@pytest.mark.parametrize("name", SCHEDULES)
def test_messages_that_hold_their_sender(name: str) -> None:
    """Stages are then unequal: the ends of the pipeline send less."""
    for p, m in sizes(name):
        for passes in PASSES:
            for transfer in TRANSFERS[1:]:
                assert abs(gap(name, p, m, *passes, transfer, overlap=False)) < 0.01, (p, m, passes, transfer)


def wide_sizes(name: str) -> list[tuple[int, int]]:
    """(p, m) from the fewest micro-batches that a schedule takes to four times as many as it has ranks."""
    found = []
    for p in (2, 3, 5, 8, 16):
        if name == "interleaved":
            found += [(p, m) for m in (p, 2 * p, 5 * p)]
        elif name == "dualpipe":
            found += [(p, m) for m in (2 * p, 2 * p + 2, 4 * p) if p % 2 == 0]
        elif name == "dualpipe-v":
            found += [(p, m) for m in (2 * p, 2 * p + 1, 3 * p)]
        else:
            found += [(p, m) for m in sorted({1, 2, p - 1, p, p + 1, p + 2, 3 * p // 2, 2 * p - 2, 2 * p - 1, 2 * p, 4 * p})]
    return found


EXACT = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v")
"""The schedules that a search compares. zb-1p and zb-2p are made for their durations and have no fixed order."""


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "held"])
@pytest.mark.parametrize("name", EXACT)
def test_equal_stages_of_any_durations(name: str, overlap: bool) -> None:
    """Within a hundredth for whatever F, I, W and messages: I from 0.5 to 2.6 F, W from 0.2 to 1.6 F, messages to a quarter of F."""
    random = np.random.default_rng(20261130)
    for p, m in wide_sizes(name):
        v = CHUNKS.get(name, 1)
        schedule = build(name, p, v, m)
        for _ in range(3):
            passes = 1.0, random.uniform(0.5, 2.6), random.uniform(0.2, 1.6)
            transfer = random.uniform(0.0, 0.25)
            formula = pipeline_span_s(name, *(np.full(p * v, x) for x in passes), m, p, v, transfer, overlap)
            simulated = simulate(schedule, uniform_costs(schedule, *passes, transfer, overlap=overlap)).span_s
            assert abs(float(formula) / simulated - 1.0) < 0.01, (p, m, passes, transfer)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "held"])
@pytest.mark.parametrize("name", EXACT)
def test_boundaries_of_two_kinds(name: str, overlap: bool) -> None:
    """Equal stages on nodes of two or four ranks; across nodes a message takes eight times as long as inside, up to 0.06 F.

    A V's busiest rank is then one in the middle, for which the forms take the filling and draining of any rank: up to 0.018 seen.
    """
    bound = 0.02 if name in ("zb-v", "dualpipe-v") and not overlap else 0.01
    random = np.random.default_rng(20261130)
    for p, m in wide_sizes(name):
        v, node = CHUNKS.get(name, 1), 2 if p == 3 else 4 if p > 4 else 1
        ranks = np.array(build(name, p, v, m).rank_of_chunk[: p * v])
        passes, inside = (1.0, random.uniform(0.6, 2.2), random.uniform(0.4, 1.3)), random.uniform(0.002, 0.008)
        between = np.where(ranks[:-1] // node == ranks[1:] // node, inside, 8 * inside)
        assert abs(gap(name, p, m, *passes, between, overlap)) < bound, (p, m, passes, inside)


def test_zb_2p_is_about_zb_h2() -> None:
    """Its greedy order depends on the durations. What it saves is inside a rank's own window; between the first start and the last
    end it stays within a hundredth, where the pipeline can be filled (m of at least 2p) and a weight half is no longer than a forward."""
    for p, m in [(2, 4), (4, 8), (4, 32), (8, 16), (8, 64)]:
        for passes in PASSES[:3]:
            assert abs(gap("zb-2p", p, m, *passes)) < 0.01, (p, m, passes)


# Bounds above the largest gaps seen in 150 random cases each (stages up to 20 % from their mean, p of 2 to 8, m of 2p to 8p): 1f1b
# exact, interleaved -0.040, zb-h1 -0.018, zb-1p -0.044, zb-h2 -0.015, zb-v 0.044, dualpipe 0.047, dualpipe-v 0.042. The
# medians are below 0.01. Uneven stages of real models are nearer to equal, and the search simulates its finalists.
UNEQUAL = {"naive": 1e-12, "gpipe": 1e-12, "1f1b": 0.01, "zb-h1": 0.03, "zb-h2": 0.03, "zb-1p": 0.06}


@pytest.mark.parametrize("name", SCHEDULES)
def test_unequal_stages_stay_close(name: str) -> None:
    random = np.random.default_rng(20240117)
    for p in (2, 4, 8):
        for m in (2 * p, 4 * p):
            for _ in range(6):
                passes = random.uniform(0.8, 1.2, (3, p * CHUNKS.get(name, 1)))
                assert abs(gap(name, p, m, *passes)) < UNEQUAL.get(name, 0.06), (p, m)


@pytest.mark.parametrize(("m", "slowdown"), [(8, 1.080), (32, 1.215), (128, 1.276)])
def test_one_stage_of_eight_that_is_1_3_times_slower(m: int, slowdown: float) -> None:
    """1F1B with b = 2f; figures worked out by hand from the longest path, three digits."""
    forward = np.ones(8)
    forward[3] = 1.3
    slow = pipeline_span_s("1f1b", forward, forward, forward, m, 8)
    equal = pipeline_span_s("1f1b", np.ones(8), np.ones(8), np.ones(8), m, 8)
    assert float(slow / equal) == pytest.approx(slowdown, abs=5e-4)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "held"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_an_array_of_layouts_gives_the_bits_of_each(name: str, overlap: bool) -> None:
    random = np.random.default_rng(7)
    p, v = 4, CHUNKS.get(name, 1)
    m = np.array([8, 16, 24, 64, 8])
    forward, backward_input, backward_weight = random.uniform(0.5, 1.5, (3, p * v, 5))
    transfer, saving = random.uniform(0.0, 0.2, (2, 5))
    together = pipeline_span_s(name, forward, backward_input, backward_weight, m, p, v, transfer, overlap, saving)
    assert together.shape == (5,)
    for k in range(5):
        alone = pipeline_span_s(
            name, forward[:, k], backward_input[:, k], backward_weight[:, k], int(m[k]), p, v, transfer[k], overlap, saving[k]
        )  # fmt: skip
        assert alone == together[k]


def test_a_pair_saves_what_it_is_said_to_save() -> None:
    """DualPipe's F&B shorter than F + B by 0.4: exact for equal stages."""
    for name, p, m in [("dualpipe", 4, 16), ("dualpipe", 8, 16), ("dualpipe-v", 4, 16), ("dualpipe-v", 3, 8)]:
        assert abs(gap(name, p, m, 1.0, 1.0, 1.0, saving=0.4)) < 1e-12, (name, p, m)


def test_an_unknown_schedule_has_no_closed_form() -> None:
    with pytest.raises(ValueError, match="no closed form for 'looped'"):
        pipeline_span_s("looped", np.ones(2), np.ones(2), np.ones(2), 4, 2)
