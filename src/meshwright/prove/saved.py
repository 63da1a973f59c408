"""Bytes that each block's forward leaves for its backward, measured on the ranks, against the ledger's ``saved`` column; and how often a
pipeline rank holds that at once, against the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.ledger.blocks.layer import feed_forward_sublayer, layer_block
from meshwright.ledger.build import Ledger
from meshwright.ledger.order import layer_kinds
from meshwright.ledger.routed import rows_of_experts
from meshwright.ledger.stages import Chunk, LayerBlock, layer_blocks
from meshwright.mesh import Mesh
from meshwright.prove.certificate import Memory
from meshwright.schedule import Schedule
from meshwright.schedule.in_flight import count_in_flight
from meshwright.spec import names

IN_FLIGHT = "chunk passes in flight"
"""Among the blocks that are compared."""


def compare_memory(ledger: Ledger, answer: Mapping[str, Any], loads: Any, schedule: Schedule | None) -> Memory:
    """Every block of every rank that measured; and with pipeline stages the chunk passes that each rank held at once.

    Args:
        answer: of the runtime's program: ``saved_bytes``, by rank, by block ("embedding", "layers.0", "head"), in the first micro-batch
            that passes it; ``in_flight``, by rank.
        loads: int [micro-batches, MoE layers, ranks, E], which say how many rows a rank's experts get; None without experts.
        schedule: of the pipeline stages.
    """
    found = []
    compared = 0
    for rank, blocks in answer["saved_bytes"].items():
        predicted = saved_bytes(ledger, int(rank), loads, schedule)
        if schedule is not None:
            predicted[IN_FLIGHT] = int(count_in_flight(schedule)[_stage(ledger, int(rank))])
            blocks = {**blocks, IN_FLIGHT: answer["in_flight"][rank]}
        for block in predicted.keys() | blocks.keys():
            compared += 1
            if blocks.get(block, 0) != predicted.get(block, 0):
                found.append((int(rank), block, predicted.get(block, 0), int(blocks.get(block, 0))))
    return Memory(compared=compared, mismatches=tuple(sorted(found)))


def saved_bytes(ledger: Ledger, rank: int, loads: Any = None, schedule: Schedule | None = None) -> dict[str, int]:
    """By block, on one rank; see compare_memory."""
    found: dict[str, int] = {}
    if schedule is None:
        return _of_chunk(ledger, ledger.pipeline.chunks[0], rank, None if loads is None else loads[0])
    for number, place in enumerate(schedule.rank_of_chunk):
        if place == _stage(ledger, rank):
            first = schedule.micro_batches_of(number)[0]
            chunk = ledger.pipeline.chunks[schedule.stage(number)]
            found |= _of_chunk(ledger, chunk, rank, None if loads is None else loads[first])
    return found


def _stage(ledger: Ledger, rank: int) -> int:
    return Mesh(ledger.layout).place(rank, "pp")


def _of_chunk(ledger: Ledger, chunk: Chunk, rank: int, loads: Any) -> dict[str, int]:
    """loads: of one micro-batch."""
    model, layout = ledger.model, ledger.layout
    blocks = layer_blocks(model, chunk.first_layer, chunk.num_layers, layout.recompute, layout.recompute_layers)
    layers = dict(enumerate(blocks, chunk.first_layer))
    later = range(model.num_layers, model.num_layers + model.mtp_layers) if chunk.last else range(0)
    layers |= dict.fromkeys(later, ledger.mtp_layer)
    found = {names.layer(index): _layer(ledger, block, index, rank, loads) for index, block in layers.items()}
    found[names.EMBEDDING] = (chunk.first + len(later)) * int(ledger.embedding.saved_bytes)
    if chunk.last:
        found[names.HEAD] = (1 + len(later)) * int(ledger.head.saved_bytes)
    # The ledger counts the norm before a shared head with the head; it is the multi-token-prediction layer's own.
    norm = sum(int(row.saved_bytes) for row in ledger.head.forward if row.name == names.NORM)
    for index in later:
        found[names.layer(index)] += int(ledger.mtp.saved_bytes) + norm
        found[names.HEAD] -= norm
    return {block: size for block, size in found.items() if size}


def _layer(ledger: Ledger, block: LayerBlock, index: int, rank: int, loads: Any) -> int:
    if not block.kind.moe or loads is None:
        return int(ledger.layer(block).saved_bytes)
    moe_index = sum(layer_kinds(ledger.model)[:index])
    rows = rows_of_experts(ledger.sizes, loads[moe_index], rank, Mesh(ledger.layout))
    sizes = ledger.sizes.with_expert_rows(rows)
    attends, _ = ledger.sublayers(block.kind)
    return int(layer_block(sizes, block, attends, feed_forward_sublayer(sizes, with_experts=True)).saved_bytes)
