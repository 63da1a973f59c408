"""Bytes that each block's forward leaves for its backward: measured on the ranks, against the ledger's ``saved`` column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.ledger.build import Ledger
from meshwright.ledger.order import pieces
from meshwright.prove.certificate import Memory
from meshwright.spec import names


def compare_saved(ledger: Ledger, measured: Mapping[Any, Mapping[str, int]], reference: Any = None) -> Memory:
    """Every block of every rank that measured.

    Args:
        measured: by rank, by block ("embedding", "layers.0", "head"), in the first micro-batch.
        reference: the numbers whose loads say how many rows a rank's experts get; None where there are none.
    """
    predicted = saved_bytes(ledger)
    found = []
    compared = 0
    for rank, blocks in measured.items():
        for block, num_bytes in blocks.items():
            if block not in predicted:
                continue
            compared += 1
            if num_bytes != predicted[block]:
                found.append((int(rank), block, predicted[block], int(num_bytes)))
    return Memory(compared=compared, mismatches=tuple(found))


def saved_bytes(ledger: Ledger) -> dict[str, int]:
    """By block, under a balanced load; layers with experts are left out, whose share depends on the load."""
    model = ledger.model
    found: dict[str, int] = {}
    for piece in pieces(ledger):
        if piece.layer is None:
            found[piece.block.name] = int(piece.block.saved_bytes)
        elif piece.layer < model.num_layers and not model.layers[piece.layer].moe:
            found[names.layer(piece.layer)] = int(piece.block.saved_bytes)
    return found
