"""The text of one estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.estimate import Estimate
from meshwright.render.estimate import estimate_text


@pytest.fixture(scope="module")
def found() -> Estimate:
    return mw.estimate("llama-3.1-8b", cluster="h100-sxm", layout="tp=2 sp dp=4 zero=1 mb=1", seq=8192, batch=64)


def test_only_parts_that_take_time_are_shown(found: Estimate) -> None:
    text = estimate_text(found, "fits")
    assert "tp collectives" in text
    assert "cp collectives" not in text


def test_what_rounding_leaves_is_no_time(found: Estimate) -> None:
    """A wait of 1e-15 s is a difference of two equal sums of seconds."""
    text = estimate_text(replace(found, parts={**found.parts, "bubble_s": 1e-15 * found.step_s}), "fits")
    assert "waiting" not in text
    assert "waiting" in estimate_text(replace(found, parts={**found.parts, "bubble_s": 1e-3 * found.step_s}), "fits")
