"""Several layouts side by side, and what would make one fit."""

from __future__ import annotations

import pytest

from jobs import job
from meshwright.api import candidates, numbers_of
from meshwright.estimate import estimate
from meshwright.explain.compare import compare, difference
from meshwright.explain.fit import remedies, remedies_in_words
from meshwright.spec.rules import check

FAST, SLOW, LARGE = "tp=8 sp pp=4 dp=1x2 zero=1 mb=1", "tp=8 sp dp=1x8 zero=3 mb=1", "dp=1x64 zero=3 mb=1"


@pytest.fixture(scope="module")
def found():
    return compare(candidates(job("llama-3.1-70b", SLOW, FAST, LARGE)))


def test_the_best_is_the_fastest_that_fits(found):
    assert [str(one.layout) for one in found.estimates] == [SLOW, FAST, LARGE]
    assert not found.estimates[2].fits and found.estimates[2].step_s < found.estimates[1].step_s
    assert found.best == 1 and found.fits


def test_if_nothing_fits_the_best_is_the_fastest():
    none = compare(candidates(job("llama-3.1-405b", "tp=8 sp dp=1x8 mb=1", "tp=8 dp=1x8 mb=1")))
    assert not none.fits
    assert none.best == min((0, 1), key=lambda index: none.estimates[index].step_s)


def test_differences_of_parts_sum_to_the_difference_of_the_step(found):
    assert [(each.layout, each.against) for each in found.differences] == [(0, 1), (2, 1)]
    for each in found.differences:
        assert each.step_s == found.estimates[each.layout].step_s - found.estimates[1].step_s
        assert sum(each.parts.values()) == pytest.approx(each.step_s, rel=1e-9)


def test_the_part_that_differs_most_is_told_first_with_its_reason(found):
    slow, large = found.differences
    assert max(slow.parts, key=lambda part: abs(slow.parts[part])) == "dp_s"
    assert slow.words[0].startswith("dp +") and "dp=1x8 zero=3 instead of dp=1x2 zero=1" in slow.words[0]
    assert large.words[0].startswith("tp -") and "tp=1 instead of tp=8 sp" in large.words[0]
    assert large.words[-1].startswith("memory +") and "activations +" in large.words[-1]


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("tp=8 sp dp=1x8 mb=1", "tp=8 sp dp=1x8 mb=1 recompute=full", ["recompute +", "recompute=full instead of recompute=none"]),
        ("tp=8 sp pp=4 dp=1x2 mb=1", "tp=8 sp pp=4 dp=1x2 mb=8", ["bubble +", "m = 32 instead of 4 stages, 1f1b, m = 256"]),
        ("tp=8 sp dp=1x8 mb=1", "tp=8 sp dp=1x8 zero=1 mb=1", ["memory -", "optimizer -"]),
        ("tp=8 sp cp=2 dp=1x4 mb=1", "tp=8 sp cp=2:allgather dp=1x4 mb=1", ["cp ", "cp=2:allgather instead of cp=2:zigzag"]),
        ("tp=8 sp dp=1x8 mb=1", "tp=16 sp dp=1x4 mb=1", ["tp +", "over nvlink and leaf instead of nvlink"]),
        ("tp=8 sp dp=1x8 mb=1", "tp=8 sp dp=8x1 mb=1", []),
    ],
    ids=["recompute", "bubble", "memory", "cp", "tier", "the-same"],
)
def test_reasons_are_counts(a, b, words):
    best, other = candidates(job("llama-3.1-70b", a, b))
    text = " | ".join(difference(best, other).words)
    assert all(word in text for word in words), text
    assert text if words else not text


def test_equal_layouts_have_nothing_to_tell():
    (difference,) = compare(candidates(job("llama-3.1-8b", "dp=1x8 zero=3 mb=1", "dp=1x8 zero=3 mb=1"))).differences
    assert (difference.step_s, difference.words) == (0.0, ())


def test_remedies_are_legal_and_fit():
    asked = job("llama-3.1-70b", LARGE)
    found = remedies(numbers_of(asked), asked.memory_fraction)
    assert found
    for remedy in found:
        check(asked.model, asked.workload, remedy.layout, asked.cluster)
        assert remedy.layout.world_size == 64
        one = estimate(asked.model, asked.cluster, asked.workload, remedy.layout, asked.stack)
        assert one.fits and one.memory_bytes == remedy.peak_bytes
    assert remedies_in_words(found).startswith("it would fit with recompute=full (")


def test_without_a_remedy_the_nearest_change_is_told():
    asked = job("llama-3.1-405b", "tp=8 dp=1x1 mb=1", batch=8)
    found = remedies(numbers_of(asked), asked.memory_fraction)
    assert len(found) == 1 and not found[0].fits
    assert remedies_in_words(found) == f"no single change makes it fit; {found[0].change} ({remedies_in_words(found).split('(')[1]}"
    assert remedies_in_words([]) == "no single change of the layout is legal here"
