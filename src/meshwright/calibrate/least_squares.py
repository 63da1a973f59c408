"""Robust least squares with priors: Gauss-Newton with a numeric Jacobian, in units of the priors' standard deviations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

STEP = 1e-3
"""Difference for the Jacobian, in standard deviations of the prior: prices are smooth but for kinks of max()."""

LARGEST_MOVE = 1.5
"""Longest step of one parameter in one iteration."""


@dataclass(frozen=True)
class Solution:
    """Where the sum of squares is least. ``covariance`` of the parameters, ``jacobian`` of the data there."""

    x: Array
    covariance: Array
    jacobian: Array


def solve(
    residuals: Callable[[Array], Array], x: Array, robust: float = 2.0, iterations: int = 12, jacobian: Array | None = None,
    weights: Array | None = None,
) -> Solution:  # fmt: skip
    """Least squares of ``residuals(x)`` (in standard deviations) and of ``x`` itself, whose prior is the standard normal.

    Args:
        robust: residuals beyond it count linearly (Huber, Annals of Mathematical Statistics 35, 1964).
        jacobian: taken as constant if given, which saves its evaluation near a known solution. weights: of each residual.
    """
    fixed = jacobian
    weight = np.ones(len(residuals(x))) if weights is None else weights
    found = residuals(x)
    for _ in range(iterations):
        jacobian = numeric_jacobian(residuals, x, found) if fixed is None else fixed
        move = _move(jacobian, found, x, weight, robust)
        cost = _cost(found, x, weight, robust)
        for shrink in (1.0, 0.5, 0.25, 0.1):
            trial = x + shrink * move
            value = residuals(trial)
            if _cost(value, trial, weight, robust) < cost:
                break
        else:
            break
        x, found = trial, value
        if np.abs(shrink * move).max() < 0.02:
            break
    jacobian = numeric_jacobian(residuals, x, found) if fixed is None else fixed
    scaled = jacobian * np.sqrt(weight * _huber(found, robust))[:, None]
    covariance: Array = np.asarray(np.linalg.inv(scaled.T @ scaled + np.eye(len(x))), dtype=np.float64)
    return Solution(x, covariance, jacobian)


def numeric_jacobian(residuals: Callable[[Array], Array], x: Array, at_x: Array) -> Array:
    """Forward differences, shape [residuals, parameters]."""
    columns = []
    for index in range(len(x)):
        moved = x.copy()
        moved[index] += STEP
        columns.append((residuals(moved) - at_x) / STEP)
    return np.stack(columns, axis=1)


def _huber(found: Array, robust: float) -> Array:
    return np.minimum(1.0, robust / np.maximum(np.abs(found), 1e-12))


def _move(jacobian: Array, found: Array, x: Array, weight: Array, robust: float) -> Array:
    share = weight * _huber(found, robust)
    scaled = jacobian * share[:, None]
    move = np.linalg.solve(scaled.T @ jacobian + np.eye(len(x)), -(scaled.T @ found + x))
    return np.clip(move, -LARGEST_MOVE, LARGEST_MOVE)


def _cost(found: Array, x: Array, weight: Array, robust: float) -> float:
    size = np.abs(found)
    linear = robust * (size - robust / 2)
    return float(np.sum(weight * np.where(size <= robust, size**2 / 2, linear)) + np.sum(x**2) / 2)
