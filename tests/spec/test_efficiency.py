"""The constants of the time model: each has a meaning and a source, and the catalog has what was fitted."""

from __future__ import annotations

from dataclasses import asdict
from math import log

import pytest

from meshwright.spec.efficiency import CONSTANTS, NAMES, fitted, prior, sources


def test_every_constant_has_a_meaning_and_a_source() -> None:
    assert tuple(CONSTANTS) == NAMES
    for name, constant in CONSTANTS.items():
        assert constant.prior > 0 and constant.spread >= 0 and constant.meaning and constant.source, name
        assert not constant.meaning.startswith("the same"), name


def test_kernel_tables_alone_are_the_priors() -> None:
    assert asdict(prior()) == {name: constant.prior for name, constant in CONSTANTS.items()}


@pytest.mark.parametrize("left_out", ["", *sources()])
def test_what_was_fitted_stays_near_its_prior(left_out: str) -> None:
    """Three standard deviations: a constant that runs pull further stands for something else than its meaning says."""
    for name, value in asdict(fitted(left_out)).items():
        constant = CONSTANTS[name]
        if constant.spread:
            assert abs(log(value / constant.prior)) <= 3 * constant.spread, name
        else:
            assert value == constant.prior


def test_a_source_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        fitted("nobody")
