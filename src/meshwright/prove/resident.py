"""Bytes that stay on the ranks from step to step, measured, against the ledger's account of weights and optimizer state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.ledger.build import Ledger
from meshwright.memory import resident_bytes
from meshwright.mesh import Mesh
from meshwright.prove.certificate import Memory

WEIGHTS, OPTIMIZER = "weights", "optimizer"
"""The runtime's names of the two (runtime/resident_bytes.py)."""


def compare_resident(ledger: Ledger, measured: Mapping[Any, Mapping[str, int]]) -> Memory:
    """The fullest rank of each stage, which is what the ledger counts: where rows do not divide, later ranks hold fewer.

    Args:
        measured: by rank, by category, after a step.
    """
    by_stage: dict[int, dict[str, tuple[int, int]]] = {}
    mesh = Mesh(ledger.layout)
    for rank, found in measured.items():
        fullest = by_stage.setdefault(mesh.coordinates(int(rank))["pp"], {})
        for name, held in found.items():
            fullest[name] = max(fullest.get(name, (-1, -1)), (int(held), int(rank)))
    wrong = []
    compared = 0
    for stage, fullest in by_stage.items():
        predicted = state_bytes(ledger, stage)
        for name, expected in predicted.items():
            held, rank = fullest[name]
            compared += 1
            if held != expected:
                wrong.append((rank, f"resident {name}", expected, held))
    return Memory(compared=compared, mismatches=tuple(wrong))


def state_bytes(ledger: Ledger, stage: int) -> dict[str, int]:
    """What the fullest rank of a stage keeps."""
    weights = optimizer = 0
    for unit, count in ledger.stage(stage).units():
        held, state = resident_bytes(unit, ledger.layout, ledger.precision)
        weights, optimizer = weights + count * int(held), optimizer + count * int(state)
    return {WEIGHTS: weights, OPTIMIZER: optimizer}
