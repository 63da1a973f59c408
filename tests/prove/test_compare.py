"""Errors by their definition, on numbers that can be checked by hand; whatever cannot be compared is an infinite error."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest

from meshwright.prove.compare import Numbers, compare_numbers, read_numbers

REFERENCE = Numbers(
    losses=np.array([2.0, 1.0]),
    gradient_norms=np.array([4.0, 4.0]),
    gradients=({"a": np.array([10.0, -100.0]), "b": np.array([1e-3])}, {"a": np.array([1.0, 2.0]), "b": np.array([0.5])}),
    weights={"a": np.array([1.0, 4.0]), "b": np.array([1e-6])},
)


def changed(step: int | None, name: str, value: object) -> Numbers:
    if step is None:
        return replace(REFERENCE, weights={**REFERENCE.weights, name: value})
    gradients = list(REFERENCE.gradients)
    gradients[step] = {**gradients[step], name: value}
    return replace(REFERENCE, gradients=tuple(gradients))


def test_equal_numbers_have_no_error():
    errors = compare_numbers(REFERENCE, REFERENCE)
    assert (errors.worst, errors.problems) == (0.0, ())


def test_a_gradient_is_judged_by_its_own_largest_entry():
    errors = compare_numbers(changed(0, "a", np.array([10.0, -99.0])), REFERENCE)
    assert errors.gradient == pytest.approx(1 / 100)
    assert errors.worst_gradient == (0, "a")


def test_a_tiny_gradient_is_judged_by_a_hundredth_of_the_models_largest():
    errors = compare_numbers(changed(0, "b", np.array([2e-3])), REFERENCE)
    assert errors.gradient == pytest.approx(1e-3 / (0.01 * 100))
    assert errors.worst_gradient == (0, "b")


def test_the_largest_entry_is_of_the_same_step():
    errors = compare_numbers(changed(1, "b", np.array([0.4])), REFERENCE)
    assert errors.gradient == pytest.approx(0.1 / 0.5)


def test_a_weight_has_a_floor_of_a_hundredth():
    errors = compare_numbers(changed(None, "b", np.array([2e-6])), REFERENCE)
    assert errors.weight == pytest.approx(1e-6 / 0.01)
    assert errors.worst_weight == "b"


def test_losses_and_norms_are_relative():
    errors = compare_numbers(replace(REFERENCE, losses=np.array([2.0, 1.1]), gradient_norms=np.array([4.0, 5.0])), REFERENCE)
    assert (errors.loss, errors.norm) == (pytest.approx(0.1), pytest.approx(0.25))


@pytest.mark.parametrize("value", [np.array([np.nan, 4.0]), np.array([np.inf, 4.0]), np.array([[1.0, 4.0]]), np.array([1.0])])
def test_what_cannot_be_compared_is_an_infinite_error(value):
    assert compare_numbers(changed(None, "a", value), REFERENCE).weight == math.inf


def test_missing_and_additional_tensors_are_told():
    ours = replace(REFERENCE, weights={"a": REFERENCE.weights["a"], "c": np.zeros(2)})
    errors = compare_numbers(ours, REFERENCE)
    assert errors.weight == math.inf
    assert errors.problems == ("weight b is missing", "weight c exists on the ranks only")


def test_a_loss_that_is_not_a_number():
    assert compare_numbers(replace(REFERENCE, losses=np.array([2.0, np.nan])), REFERENCE).loss == math.inf


def test_numbers_are_read_back_from_their_file():
    file = io.BytesIO()
    arrays = {f"gradients/{step}/{name}": value for step, gradients in enumerate(REFERENCE.gradients) for name, value in gradients.items()}
    arrays |= {f"weights/{name}": value for name, value in REFERENCE.weights.items()}
    np.savez(file, losses=REFERENCE.losses, gradient_norms=REFERENCE.gradient_norms, **arrays)
    file.seek(0)
    read = read_numbers(file)
    assert compare_numbers(read, REFERENCE).worst == 0.0
    assert read.loads is None
