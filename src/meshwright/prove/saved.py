"""Bytes that each block's forward leaves for its backward: measured on the ranks, against the ledger's ``saved`` column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.ledger.blocks.layer import feed_forward_sublayer, layer_block
from meshwright.ledger.build import Ledger
from meshwright.ledger.order import layer_kinds
from meshwright.ledger.routed import rows_of_experts
from meshwright.ledger.stages import LayerBlock, layer_blocks
from meshwright.mesh import Mesh
from meshwright.prove.certificate import Memory
from meshwright.spec import names


def compare_saved(ledger: Ledger, measured: Mapping[Any, Mapping[str, int]], loads: Any = None) -> Memory:
    """Every block of every rank that measured.

    Args:
        measured: by rank, by block ("embedding", "layers.0", "head"), in the first micro-batch.
        loads: int [MoE layers, ranks, E] of that micro-batch, which say how many rows a rank's experts get; None without experts.
    """
    found = []
    compared = 0
    for rank, blocks in measured.items():
        predicted = saved_bytes(ledger, int(rank), loads)
        for block in predicted.keys() | blocks.keys():
            compared += 1
            if blocks.get(block, 0) != predicted.get(block, 0):
                found.append((int(rank), block, predicted.get(block, 0), int(blocks.get(block, 0))))
    return Memory(compared=compared, mismatches=tuple(sorted(found)))


def saved_bytes(ledger: Ledger, rank: int, loads: Any = None) -> dict[str, int]:
    """By block, on one rank of a layout without pipeline stages."""
    model, layout = ledger.model, ledger.layout
    blocks = layer_blocks(model, 0, model.num_layers, layout.recompute, layout.recompute_layers) + [ledger.mtp_layer] * model.mtp_layers
    found = {names.layer(index): _layer(ledger, block, index, rank, loads) for index, block in enumerate(blocks)}
    found[names.EMBEDDING] = (1 + model.mtp_layers) * int(ledger.embedding.saved_bytes)
    found[names.HEAD] = (1 + model.mtp_layers) * int(ledger.head.saved_bytes)
    # The ledger counts the norm before a shared head with the head; it is the multi-token-prediction layer's own.
    norm = sum(int(row.saved_bytes) for row in ledger.head.forward if row.name == names.NORM)
    for index in range(model.num_layers, len(blocks)):
        found[names.layer(index)] += int(ledger.mtp.saved_bytes) + norm
        found[names.HEAD] -= norm
    return found


def _layer(ledger: Ledger, block: LayerBlock, index: int, rank: int, loads: Any) -> int:
    if not block.kind.moe or loads is None:
        return int(ledger.layer(block).saved_bytes)
    moe_index = sum(layer_kinds(ledger.model)[:index])
    rows = rows_of_experts(ledger.sizes, loads[moe_index], rank, Mesh(ledger.layout))
    sizes = ledger.sizes.with_expert_rows(rows)
    attends, _ = ledger.sublayers(block.kind)
    return int(layer_block(sizes, block, attends, feed_forward_sublayer(sizes, with_experts=True)).saved_bytes)
