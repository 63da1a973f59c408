"""Numbers of the ranks against numbers of one device (DESIGN section 6's definition of an error).

A gradient tensor's error: max|a - b| / max(max|b|, 0.01 G) with b of one device and G the largest gradient entry of the model, so
that a tensor of tiny gradients is judged by what it adds to the whole. A weight's: max|a - b| / max(max|b|, 0.01). A loss's: relative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SMALL = 0.01
"""Share of the largest entry below which differences are not magnified."""

BOUNDS = {"float64": 1e-12, "float32": 1e-4, "bf16": 0.25}
"""Largest error that passes, by the dtype that computes.

float64: sums in another order differ by 1e-15 to 1e-13; a fault stands out by ten orders of magnitude. float32 and bf16 round at 6e-8 and
4e-3, and AdamW divides small differences by small moments, which magnifies them; their numbers only say that nothing is grossly
wrong.
"""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What one side computed: as runtime's proof program saves it.

    Attributes:
        losses, gradient_norms: by step. gradients: by step, then by name. weights: after the last step.
        loads: int [steps, micro-batches, MoE layers, ranks, E], None without experts.
    """

    losses: Any
    gradient_norms: Any
    gradients: tuple[Mapping[str, Any], ...]
    weights: Mapping[str, Any]
    loads: Any = None


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The worst errors, and where: (step, name) of a gradient, name of a weight. problems: what could not be compared at all."""

    loss: float
    gradient: float
    weight: float
    norm: float
    worst_gradient: tuple[int, str] | None
    worst_weight: str | None
    problems: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        return max(self.loss, self.gradient, self.weight, self.norm)


def read_numbers(file: Any) -> Numbers:
    """The numbers of an ``.npz`` file."""
    with np.load(file) as arrays:
        values = {name: arrays[name] for name in arrays.files}
    steps = len(values["losses"])
    gradients = tuple(_under(values, f"gradients/{step}/") for step in range(steps))
    return Numbers(
        losses=values["losses"], gradient_norms=values["gradient_norms"], gradients=gradients,
        weights=_under(values, "weights/"), loads=values.get("loads"),
    )  # fmt: skip


def _under(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def compare_numbers(parallel: Numbers, reference: Numbers) -> Errors:
    """Worst errors over all steps and tensors; a nan or a missing tensor is an infinite error."""
    problems: list[str] = []
    gradients = {
        (step, name): error
        for step in range(len(reference.gradients))
        for name, error in gradient_errors(parallel, reference, step, problems).items()
    }
    weights = weight_errors(parallel, reference, problems)
    worst_gradient = max(gradients, key=gradients.__getitem__, default=None)
    worst_weight = max(weights, key=weights.__getitem__, default=None)
    return Errors(
        loss=_relative(parallel.losses, reference.losses),
        norm=_relative(parallel.gradient_norms, reference.gradient_norms),
        gradient=gradients[worst_gradient] if worst_gradient else 0.0,
        weight=weights[worst_weight] if worst_weight else 0.0,
        worst_gradient=worst_gradient, worst_weight=worst_weight, problems=tuple(problems),
    )  # fmt: skip


def gradient_errors(parallel: Numbers, reference: Numbers, step: int, problems: list[str] | None = None) -> dict[str, float]:
    """By parameter, in one step. problems: takes what could not be compared."""
    ours, theirs = parallel.gradients[step], reference.gradients[step]
    return _tensor_errors(ours, theirs, SMALL * _largest(theirs), f"step {step}, gradient of", [] if problems is None else problems)


def weight_errors(parallel: Numbers, reference: Numbers, problems: list[str] | None = None) -> dict[str, float]:
    """By parameter, after the last step."""
    return _tensor_errors(parallel.weights, reference.weights, SMALL, "weight", [] if problems is None else problems)


def _largest(tensors: Mapping[str, Any]) -> float:
    """The largest entry of all tensors."""
    return max((_max_abs(tensor) for tensor in tensors.values()), default=0.0)


def _tensor_errors(ours: Mapping[str, Any], theirs: Mapping[str, Any], floor: float, what: str, problems: list[str]) -> dict[str, float]:
    errors = {}
    for name, reference in theirs.items():
        value = ours.get(name)
        if value is None or value.shape != reference.shape:
            found = "is missing" if value is None else f"has shape {list(value.shape)} instead of {list(reference.shape)}"
            problems.append(f"{what} {name} {found}")
            errors[name] = float("inf")
            continue
        difference = _max_abs(value.astype(np.float64) - reference.astype(np.float64))
        errors[name] = _ratio(difference, max(_max_abs(reference), floor))
    problems += [f"{what} {name} exists on the ranks only" for name in ours if name not in theirs]
    return errors


def _max_abs(tensor: Any) -> float:
    """0 of an empty tensor, infinity where anything is not a number."""
    if not tensor.size:
        return 0.0
    value = float(np.max(np.abs(tensor.astype(np.float64))))
    return value if np.isfinite(value) else float("inf")


def _ratio(difference: float, scale: float) -> float:
    if difference == 0.0:
        return 0.0
    return difference / scale if scale > 0.0 else float("inf")


def _relative(ours: Any, theirs: Any) -> float:
    """The largest relative difference of two lists of numbers."""
    if len(ours) != len(theirs):
        return float("inf")
    return max((relative_error(float(a), float(b)) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def relative_error(ours: float, theirs: float) -> float:
    """Infinite where ours is not a number."""
    return _ratio(abs(ours - theirs), abs(theirs)) if np.isfinite(ours) else float("inf")
