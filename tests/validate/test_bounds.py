"""The accuracy that the time model has on published runs of sources that its constants were not fitted to (docs/validation.md).

A change that loses a bound fails here. Figures are of rows that say every degree, the micro-batch and a time, doubtful rows left
out; the step is the closed form's, which orders a search, so that all runs are priced in seconds.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from meshwright.spec.efficiency import CONSTANTS, sources
from meshwright.spec.stack import STACKS, SWITCHES
from meshwright.validate.judge import fast_price
from meshwright.validate.report import Report, validate
from meshwright.validate.summary import errors, ranking
from shared_data import ROOT, shared


@cache
def report(calibrate: int = 0, seed: int = 0) -> Report:
    return validate(shared("data/published_runs.csv"), calibrate, seed, without_source=True, price=fast_price)


def test_every_source_was_left_out_once() -> None:
    assert {one.source for one in report().judged if one.is_time} == set(sources())


@pytest.mark.parametrize(("kind", "mean", "median", "p90"), [("dense", 0.09, 0.07, 0.18), ("moe", 0.18, 0.18, 0.40)])
def test_errors_of_sources_that_were_left_out(kind: str, mean: float, median: float, p90: float) -> None:
    found = errors(report().chosen(kind))
    assert found is not None and found.count >= 13
    assert found.mape <= mean
    assert found.median <= median
    assert found.p90 <= p90


def test_it_beats_constant_utilisation_and_kernel_tables() -> None:
    found, tables = errors(report().chosen("dense")), errors(report().chosen("dense", report().tables))
    assert found is not None and tables is not None
    assert found.mape < 0.4 * report().naive["mape"]
    assert found.mape < 0.7 * tables.mape


def test_ranges_hold_nine_of_ten() -> None:
    found = errors(report().chosen("dense"))
    assert found is not None and 0.85 <= found.covered <= 0.95


def test_pairs_are_ordered_and_the_choice_costs_little() -> None:
    found = ranking(report().chosen("time"))
    assert found is not None and found.pairs > 1000 and found.choices >= 20
    assert found.ordered >= 0.90
    assert found.regret <= 0.03


def test_memory_where_the_allocators_peak_is_printed() -> None:
    printed = [one for one in report().chosen("memory") if "max_memory_allocated" in one.question.run.text("metric2_name")]
    found = errors(printed)
    assert found is not None and found.count > 25
    assert found.mape <= 0.015


def test_runs_that_ran_are_predicted_to() -> None:
    counts = report().fit_counts
    assert counts["ran"] > 200
    assert counts["predicted_to_run"] >= 0.97 * counts["ran"]


@pytest.mark.slow
def test_after_calibration_on_three_runs() -> None:
    """The mean of three draws: others draw other runs, and seed 2's are worse than most. p90 was hoped to be 0.12 (docs/log.md)."""
    reports = [report(3, seed) for seed in (0, 1, 2)]
    now = [errors(one.chosen("dense", one.calibrated)) for one in reports]
    before = [errors(one.chosen("dense", one.same_before)) for one in reports]
    for bound, key in ((0.065, "mape"), (0.045, "median"), (0.155, "p90")):
        assert float(np.mean([getattr(one, key) for one in now])) <= bound
    assert np.mean([one.mape for one in now if one]) < 0.9 * np.mean([one.mape for one in before if one])
    assert all(one is not None and 0.82 <= one.covered <= 0.95 for one in now)
    for one in reports:
        widths = [np.log([row.high / row.low for row in one.chosen("dense", rows)]).mean() for rows in (one.calibrated, one.same_before)]
        assert widths[0] < 0.85 * widths[1]


def test_fitted_constants_are_few() -> None:
    """Printed beside the error in docs/validation.md: constants for a few hundred runs, none for a model, a run or a source."""
    fitted = [name for name, constant in CONSTANTS.items() if constant.spread > 0]
    assert len(fitted) == 42
    assert (len(STACKS), len(SWITCHES)) == (13, 15)
    assert all(len(stack.source) > 15 for stack in STACKS.values())


def test_the_page_shows_these_figures() -> None:
    """docs/validation_figures.json is what benchmarks/validation_figures.py makes of this code; its figures have four digits."""
    shown = json.loads((ROOT / "docs" / "validation_figures.json").read_text(encoding="utf-8"))
    for kind in ("dense", "moe"):
        found = errors(report().chosen(kind))
        assert found is not None
        for key, value in found.as_json().items():
            assert shown[kind][key] == pytest.approx(value, abs=1e-4), (kind, key)
    order = ranking(report().chosen("time"))
    assert order is not None
    assert shown["ranking"] == {key: pytest.approx(value, abs=1e-4) for key, value in order.as_json().items()}
    assert shown["fits"] == report().fit_counts and shown["constants"] == 42
