"""Where tests find the data that is kept beside the checkout: configs, published runs, traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def shared(path: str | Path) -> Path:
    """``shared("data/published_runs.csv")``; skips the test, saying so, where that file is missing."""
    found = Path(os.environ.get("MESHWRIGHT_SHARED") or ROOT.parent / "shared") / path
    if not found.exists():
        pytest.skip(f"{found} is missing; set MESHWRIGHT_SHARED to the folder that has {path}")
    return found
