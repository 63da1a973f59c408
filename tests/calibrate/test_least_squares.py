"""The solver beside numpy's own, and what its robustness is for."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.calibrate.least_squares import numeric_jacobian, solve

RANDOM = np.random.default_rng(7)
MATRIX = RANDOM.normal(size=(40, 3))
TRUTH = np.array([0.5, -0.3, 0.2])


def test_a_linear_problem_is_ridge_regression() -> None:
    """With a unit prior and no outliers: (A'A + I)^-1 A'b, as numpy solves it. Differences of 1e-3 for the Jacobian round at 1e-12."""
    wanted = MATRIX @ TRUTH + 0.1 * RANDOM.normal(size=40)
    found = solve(lambda x: MATRIX @ x - wanted, np.zeros(3), robust=1e9)
    normal = MATRIX.T @ MATRIX + np.eye(3)
    assert found.x == pytest.approx(np.linalg.solve(normal, MATRIX.T @ wanted), rel=1e-6)
    assert found.covariance == pytest.approx(np.linalg.inv(normal), rel=1e-6)
    assert found.jacobian == pytest.approx(MATRIX, rel=1e-9)


def test_a_weight_is_a_repetition() -> None:
    wanted = MATRIX @ TRUTH + 0.1 * RANDOM.normal(size=40)
    weights = np.where(np.arange(40) < 10, 2.0, 1.0)
    twice = np.concatenate([np.arange(40), np.arange(10)])
    weighted = solve(lambda x: MATRIX @ x - wanted, np.zeros(3), robust=1e9, weights=weights)
    repeated = solve(lambda x: (MATRIX @ x - wanted)[twice], np.zeros(3), robust=1e9)
    assert weighted.x == pytest.approx(repeated.x, rel=1e-6)


def test_an_outlier_pulls_less_than_by_its_square() -> None:
    wanted = MATRIX @ TRUTH
    wanted[3] += 50.0
    robust, plain = (solve(lambda x: MATRIX @ x - wanted, np.zeros(3), robust=limit).x for limit in (1.0, 1e9))
    clean = np.linalg.solve(MATRIX.T @ MATRIX + np.eye(3), MATRIX.T @ (MATRIX @ TRUTH))
    assert np.abs(robust - clean).max() < 0.2 * np.abs(plain - clean).max()


def test_a_curved_problem_is_solved_too() -> None:
    wanted = np.exp(MATRIX @ TRUTH)
    found = solve(lambda x: 100.0 * (np.exp(MATRIX @ x) - wanted), np.zeros(3), robust=1e9, iterations=30)
    assert found.x == pytest.approx(TRUTH, abs=1e-3)


def test_the_jacobian_is_of_forward_differences() -> None:
    x = np.array([0.1, 0.2])
    found = numeric_jacobian(lambda y: y**2, x, x**2)
    assert found == pytest.approx(np.diag([0.201, 0.401]), rel=1e-9)
