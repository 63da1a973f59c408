"""Three optimizer steps of many layouts against one device, in float64: losses, gradient norms, every gradient and every weight."""

from __future__ import annotations

import pytest

from runtime.steps.matrix import CONTEXT, DATA, DROPOUT, EXPERTS, RECOMPUTE, TENSOR
from runtime.steps.proving import check_numbers, job_of, prove, reference_of

pytestmark = pytest.mark.dist


@pytest.mark.parametrize(("family", "layout"), [*TENSOR, *CONTEXT, *DATA, *EXPERTS, *RECOMPUTE])
def test_steps_are_one_devices(family: str, layout: str) -> None:
    _, parallel, reference = prove(job_of(family, layout))
    check_numbers(parallel, reference)


@pytest.mark.parametrize(("family", "layout"), DROPOUT)
def test_dropout_is_the_same_on_any_layout(family: str, layout: str) -> None:
    _, parallel, reference = prove(job_of(family, layout, dropout=0.2))
    check_numbers(parallel, reference)
    without = reference_of(job_of(family, layout))
    assert abs(without.losses[0] - reference.losses[0]) > 1e-3, "nothing was dropped"
