"""Memory by stage: sums, words, and figures that papers give."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, job, named, numbers
from meshwright.api import numbers_of
from meshwright.estimate import estimate
from meshwright.explain.memory_report import report_memory
from meshwright.spec.parameters import parameter_count


@pytest.mark.parametrize("name", LAYOUTS)
def test_categories_sum_to_the_peak_and_the_fullest_is_the_estimates(name):
    model, layout = LAYOUTS[name]
    asked = job(model, layout)
    report = report_memory(named(name))
    assert [stage.stage for stage in report.stages] == list(range(asked.layout.pp))
    for stage in report.stages:
        assert sum(stage.categories.values()) == stage.peak_bytes
    found = estimate(asked.model, asked.cluster, asked.workload, asked.layout, asked.stack)
    # Bytes of a half-full pipeline chunk need not be whole; each category is rounded down by itself.
    assert abs(report.fullest.peak_bytes - found.memory_bytes) <= len(report.fullest.categories)
    assert report.fits == found.fits


@pytest.mark.parametrize(("zero", "bytes_per_parameter"), [(0, 16.0), (1, 2 + 2 + 12 / 4), (2, 2 + 2 / 4 + 12 / 4), (3, 16 / 4)])
def test_sixteen_bytes_a_parameter_and_what_zero_leaves(zero, bytes_per_parameter):
    """Rajbhandari et al. (arXiv 1910.02054), section 3.1 and figure 1: 2 + 2 + 12 bytes for Adam in mixed precision; over N = 4
    ranks 7, 5.5 and 4."""
    priced = numbers("llama-3.1-8b", f"dp=1x4 zero={zero} mb=1", precision="bf16")
    categories = report_memory(priced).stages[0].categories
    state = categories["weights"] + categories["gradients"] + categories["optimizer"]
    assert state == pytest.approx(bytes_per_parameter * parameter_count(priced.ledger.model), rel=1e-9)


def test_one_f_one_b_holds_fewer_micro_batches_on_later_stages():
    """min(p - stage, m) (Narayanan et al., arXiv 2104.04473, section 2.2.1)."""
    report = report_memory(named("pipeline"))
    assert [stage.in_flight for stage in report.stages] == [4, 3, 2, 1]
    first, second = (report.stages[index].categories["activations"] for index in (1, 2))
    assert first / second == pytest.approx(3 / 2, rel=1e-12)
    assert [stage.layers[0] for stage in report.stages] == [0, 20, 40, 60]


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_holds_the_peak_makes_up_most_of_it(name):
    for stage in report_memory(named(name)).stages:
        told = [category for category in stage.categories if category.replace("_", " ") in stage.held_by.split(" (")[0] + stage.held_by]
        largest = max(stage.categories, key=lambda category: stage.categories[category])
        assert largest in told
        assert stage.held_by.startswith(largest.replace("_", " "))


def test_reasons_name_what_was_decided():
    held = report_memory(named("pipeline")).stages[0].held_by
    assert "activations 49% (all that the backward needs, of 4 micro-batches and 20 layers)" in held
    assert "12 bytes a parameter over dp_shard x cp = 2" in held
    assert "of experts over" in report_memory(named("mla-mtp")).stages[1].held_by or report_memory(named("experts")).stages[0].held_by


def test_the_verdict_says_how_far_off_it_is():
    asked = job("llama-3.1-70b", "dp=1x64 zero=3 mb=1")
    report = report_memory(numbers_of(asked))
    assert not report.fits
    assert report.verdict.startswith("does not fit: ") and "more than" in report.verdict
    small = report_memory(named("fsdp"), memory_fraction=1.0)
    assert small.fits and small.verdict.startswith("fits: ")
    assert small.allowed_bytes == small.device_bytes - small.reserved_bytes


def test_json_has_the_keys_of_the_design():
    found = report_memory(named("pipeline")).as_json()
    assert list(found) == ["stages"]
    assert [list(stage) for stage in found["stages"]] == [["stage", "categories", "peak_bytes", "held_by"]] * 4
    assert all(type(value) is int for stage in found["stages"] for value in stage["categories"].values())
