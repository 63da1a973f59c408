"""What is asked of the model: a training step, a prefill or a decode step."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_BATCH = 10**6
"""Sequences of one step: ten times the largest batches there are. Beyond it tokens were meant, and a pipeline of them is simulated."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtypes of one training recipe (DESIGN section 4.2).

    Attributes:
        compute: dtype of the matrix products. activation: of activations and of what tp, cp, pp and ep send.
        weight: of the parameters that a rank keeps (for ``fsdp`` the fp32 shard, which is also the master).
        gathered: what zero=3 gathers. gradient: what gradients accumulate in.
        reduce: what the data-parallel reduction sends.
        state_bytes: optimizer bytes per parameter: master copy, if it is apart from the weight, and both moments.
    """

    name: str
    compute: str
    activation: str
    weight: str
    gathered: str
    gradient: str
    reduce: str
    state_bytes: int


def _recipe(name: str, compute: str, activation: str, weight: str, gathered: str, gradient: str, state_bytes: int) -> Precision:
    return Precision(
        name=name, compute=compute, activation=activation, weight=weight, gathered=gathered,
        gradient=gradient, reduce=gradient, state_bytes=state_bytes,
    )  # fmt: skip


PRECISIONS: dict[str, Precision] = {
    recipe.name: recipe
    for recipe in (
        _recipe("bf16", "bf16", "bf16", "bf16", "bf16", "bf16", 12),
        _recipe("bf16-fp32grad", "bf16", "bf16", "bf16", "bf16", "float32", 12),
        _recipe("fp16", "float16", "float16", "float16", "float16", "float16", 12),
        _recipe("fsdp", "bf16", "bf16", "float32", "bf16", "float32", 8),
        _recipe("fsdp-fp8", "fp8", "bf16", "float32", "bf16", "float32", 8),
        _recipe("fp8", "fp8", "bf16", "bf16", "bf16", "bf16", 12),
        _recipe("float32", "float32", "float32", "float32", "float32", "float32", 8),
        _recipe("float64", "float64", "float64", "float64", "float64", "float64", 16),
    )
}
"""Recipes by the name that ``--precision`` takes. Master and moments are fp32 except in ``float64``."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One optimizer step: ``batch`` sequences of ``seq`` tokens over the whole job.

    precision: a key of PRECISIONS, or None for the layout's default (``fsdp`` with zero=3, else ``bf16``).
    """

    seq: int
    batch: int
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """``batch`` prompts of ``seq`` tokens at once."""

    seq: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Decode:
    """One token for each of ``batch`` requests that have ``seq`` tokens in the cache."""

    seq: int
    batch: int
