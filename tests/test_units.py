"""Counts with what they count."""

from __future__ import annotations

import pytest

from meshwright.units import format_number_of


@pytest.mark.parametrize(("count", "text"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs"), (4096, "4,096 GPUs")])
def test_one_thing_is_singular(count: int, text: str) -> None:
    assert format_number_of(count, "GPU") == text
