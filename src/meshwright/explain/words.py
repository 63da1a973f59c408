"""Small pieces of sentences."""

from __future__ import annotations

from collections.abc import Sequence


def in_runs(numbers: Sequence[int], most: int = 6) -> str:
    """``0-19, 40-59``: ascending numbers as runs; of more than ``most`` runs the first ones and the last."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(words) > most:
        words = [*words[: most - 1], "...", words[-1]]
    return ", ".join(words)
