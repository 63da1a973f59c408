"""What is to be proved, and how."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import __version__
from meshwright.prove.compare import BOUNDS
from meshwright.schedule import Schedule
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.workload import Training

DTYPES = tuple(BOUNDS)
DEFAULT_RANKS = 8
DEFAULT_STEPS = 3
TIMEOUT_S = 300.0
"""Of one run on all ranks."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be proved, and how.

    Attributes:
        ranks: processes that may be started. dtype: what computes: numbers are exact in float64, statistical else.
        dropout: rate. folder: keeps the recordings; None for a temporary one.
        schedule: the order of the pipeline stages, read from a file; None for the one that the layout's word says.
    """

    model: Model
    workload: Training
    layout: Layout
    ranks: int = DEFAULT_RANKS
    dtype: str = "float64"
    steps: int = DEFAULT_STEPS
    seed: int = 0
    dropout: float = 0.0
    plan_hash: str = ""
    folder: Path | None = None
    timeout_s: float = TIMEOUT_S
    schedule: Schedule | None = None


def versions(answer: Mapping[str, Any]) -> dict[str, str]:
    """Of all that took part."""
    return {"meshwright": __version__, "python": platform.python_version(), **answer.get("versions", {})}
