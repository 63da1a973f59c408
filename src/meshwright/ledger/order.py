"""The rows of one step in the order in which a rank executes them: what makes a list of collectives out of counts.

Forward of every block in model order, backward in reverse, for each micro-batch; then what happens once per step. Inside one
process group the order is exact; between groups it is only the order in which a block would write them down.

ZeRO-3's gathers and reductions are FSDP2's (torch.distributed.fsdp, ``FSDPParamGroup``): in the backward the unit before is gathered
while this one computes, hence the gather of block i-1 comes before the reduce_scatter of block i. Units leave the last backward in
reverse, the root at last; what is summed after it (over tp, over replicas) and gathered after the optimizer goes in model order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from meshwright.ledger.blocks.layer import Block
from meshwright.ledger.build import Ledger, scalar_rows
from meshwright.ledger.data_parallel import Unit
from meshwright.ledger.rows import Row
from meshwright.ledger.stages import Chunk, layer_blocks
from meshwright.spec import names
from meshwright.spec.model import Model

Half = Literal["whole", "input", "weight"]


@dataclass(frozen=True, slots=True)
class Placed:
    """One call of a row: where in the step it happens.

    Attributes:
        module: full name, with the layer's number. layer: that number, None outside of layers.
        micro_batch: None for what happens once per step.
        chunk: of the pipeline; None without one, and for what happens once per step.
        peer_stage: pipeline rank at the other end of a message between stages.
    """

    row: Row
    module: str
    layer: int | None
    micro_batch: int | None
    chunk: int | None = None
    peer_stage: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the model as it runs: a layer, the embedding, the head.

    Attributes:
        blocks: in the order of the forward; a multi-token-prediction layer has two.
        layer: its number. unit: that of its parameters. None, None where the root has them.
    """

    blocks: tuple[Block, ...]
    layer: int | None = None
    unit: Unit | None = None


def pieces(ledger: Ledger, chunk: Chunk) -> list[Piece]:
    """A chunk of the model, in the order of the forward pass."""
    layout, model = ledger.layout, ledger.model
    blocks = layer_blocks(model, chunk.first_layer, chunk.num_layers, layout.recompute, layout.recompute_layers)
    embedding, head = Piece((ledger.embedding,)), Piece((ledger.head,))
    found = [embedding] if chunk.first else []
    found += [Piece((ledger.layer(block),), index, ledger.layer_unit(block.kind)) for index, block in enumerate(blocks, chunk.first_layer)]
    if chunk.last:
        found.append(head)
        for index in range(model.num_layers, model.num_layers + model.mtp_layers):
            found += [embedding, Piece((ledger.mtp, ledger.layer(ledger.mtp_layer)), index, ledger.mtp_unit), head]
    return found


def step_order(ledger: Ledger) -> Iterator[Placed]:
    """Every collective and P2P of one step of a layout without pipeline stages.

    Raises:
        ValueError: with pp > 1, whose order is its schedule's (pipelined_order.py).
    """
    if ledger.layout.pp > 1:
        raise ValueError("the order of a pipelined step is its schedule's")
    (chunk,) = ledger.pipeline.chunks
    model_pieces = pieces(ledger, chunk)
    units = units_of(model_pieces)
    root, zero = ledger.root(True, True), ledger.layout.zero
    scalars = scalar_rows(ledger)
    yield from placed_rows([row for row in scalars if row.name == names.TOKEN_COUNT])
    last = int(ledger.micro_batches) - 1
    keep = ledger.layout.zero_variant == "keep"
    for micro_batch in range(last + 1):
        gathers = root.step if keep and micro_batch == 0 else root.forward
        yield from placed_rows(rows_of(gathers, "all_gather", "forward"), micro_batch=micro_batch)
        yield from forward_order(model_pieces, micro_batch, keep and micro_batch == 0)
        yield from backward_order(model_pieces, units, micro_batch, micro_batch == last, zero)
        yield from placed_rows(root.backward, micro_batch=micro_batch)
    yield from leaving(root, None, last, zero)
    yield from after_backward(ledger, units, root)


def after_backward(ledger: Ledger, units: dict[int, Unit], root: Unit | None) -> Iterator[Placed]:
    """What happens once per step behind the reductions of the last backward."""
    for chosen in (_tensor_sums, _replica_sums(ledger.layout.zero), lambda row: row.axis in BETWEEN_STAGES and row.name != names.ROUTER):
        yield from _of_units(ledger, units, root, chosen)
    yield from placed_rows([row for row in scalar_rows(ledger) if row.name == names.GRADIENT_NORM])
    yield from _of_units(ledger, units, root, lambda row: row.name == names.ROUTER)
    yield from _of_units(ledger, units, root, lambda row: row.phase == "optimizer")


BETWEEN_STAGES = ("mirror", "embedding")
"""Axes of sums over two stages that hold the same parameters."""


def _tensor_sums(row: Row) -> bool:
    return row.phase == "reduce" and row.axis == "tp"


def _replica_sums(zero: int) -> Callable[[Row], bool]:
    """Replicas of a shard; FSDP2 sums them with each unit."""
    return lambda row: row.phase == "reduce" and row.axis == "dp_replicate" and zero < 3


def leaving(unit: Unit, layer: int | None, last: int, zero: int) -> Iterator[Placed]:
    """What a unit sends as soon as the last backward has completed it; FSDP2 counts that to the micro-batch."""
    replicas = _replica_sums(zero)
    later = ("tp", *BETWEEN_STAGES)
    rows = [row for row in unit.step if row.phase == "reduce" and row.name != names.ROUTER and row.axis not in later and not replicas(row)]
    yield from placed_rows(rows, layer, last if zero == 3 else None)


def _of_units(ledger: Ledger, units: dict[int, Unit], root: Unit | None, chosen: Callable[[Row], bool]) -> Iterator[Placed]:
    """Some of the rows of each step, in model order, the root at last."""
    mirrored = ledger.layout.schedule == "dualpipe" and ledger.layout.pp > 1
    for layer, unit in [*units.items(), *([(None, root)] if root else [])]:
        yield from placed_rows(filter(chosen, [*unit.step, *(unit.mirror if mirrored else [])]), layer)


def rows_of(rows: Iterable[Row], op: str, phase: str) -> list[Row]:
    return [row for row in rows if row.op == op and row.phase == phase]


def units_of(model_pieces: Sequence[Piece]) -> dict[int, Unit]:
    """The unit of each layer, in the order of the forward pass."""
    return {piece.layer: piece.unit for piece in model_pieces if piece.layer is not None and piece.unit is not None}


def forward_order(model_pieces: Sequence[Piece], micro_batch: int, once: bool) -> Iterator[Placed]:
    """once: what a step gathers once is gathered in this pass (zero=3:keep's first)."""
    for piece in model_pieces:
        if piece.unit is not None:
            rows = piece.unit.step if once else piece.unit.forward
            yield from placed_rows(rows_of(rows, "all_gather", "forward"), piece.layer, micro_batch)
        for block in piece.blocks:
            yield from placed_rows(block.forward, piece.layer, micro_batch)


def backward_order(
    model_pieces: Sequence[Piece], units: dict[int, Unit], micro_batch: int, last: bool, zero: int, half: Half = "whole"
) -> Iterator[Placed]:
    """Pieces in reverse. Each unit is gathered when the one after it starts, the last layer's when the root does.

    half: of a backward that is split: ``input`` is all but the gradients of weights and the reductions, which ``weight`` is.
    """
    ahead = reversed(units if half != "weight" else {})
    yield from _gather_next(units, ahead, micro_batch)
    for piece in reversed(model_pieces):
        if piece.unit is not None:
            yield from _gather_next(units, ahead, micro_batch)
        for block in reversed(piece.blocks):
            rows = [row for row in backward_rows(block) if half == "whole" or (row.phase == "backward_weight") == (half == "weight")]
            yield from placed_rows(rows, piece.layer, micro_batch)
        if piece.unit is not None and half != "input":
            yield from placed_rows([row for row in piece.unit.backward if row.op != "all_gather"], piece.layer, micro_batch)
            if last:
                yield from leaving(piece.unit, piece.layer, micro_batch, zero)


def _gather_next(units: dict[int, Unit], ahead: Iterator[int], micro_batch: int) -> Iterator[Placed]:
    for layer in islice(ahead, 1):
        yield from placed_rows(rows_of(units[layer].backward, "all_gather", "backward_input"), layer, micro_batch)


def backward_rows(block: Block) -> list[Row]:
    """The backward, with the recomputation where it is first needed: nothing that was saved goes into the collectives that only mirror
    the forward's last ones."""
    rows = block.backward
    if not block.recompute:
        return rows
    of_core = all(row.name == names.CORE for row in block.recompute)
    needs = [(row.name == names.CORE and row.op != "all_to_all") if of_core else row.op is None for row in rows]
    first = needs.index(True)
    return [*rows[:first], *block.recompute, *rows[first:]]


def placed_rows(rows: Iterable[Row], layer: int | None = None, micro_batch: int | None = None) -> Iterator[Placed]:
    """Rows that send, each as often as it is called."""
    for row in _calls(list(rows)):
        yield Placed(row, full_name(row.name, layer), layer, micro_batch)


def _calls(rows: Sequence[Row]) -> Iterator[Row]:
    """Each call of each row. Exchanges of one ring in one phase take turns: what a step needs is sent when the step begins, and
    what it has made when it ends."""
    index = 0
    while index < len(rows):
        row = rows[index]
        index += 1
        if row.op in ("send", "recv") and row.axis == "ring":
            ring = [row]
            while index < len(rows) and (rows[index].op is None or (rows[index].axis, rows[index].phase) == (row.axis, row.phase)):
                ring += [rows[index]] if rows[index].op else []
                index += 1
            yield from _turns(ring)
        elif row.op is not None:
            yield from [row] * int(row.times)


def _turns(rows: Sequence[Row]) -> Iterator[Row]:
    for turn in range(max(int(row.times) for row in rows)):
        yield from (row for row in rows if turn < row.times)


def full_name(name: str, layer: int | None) -> str:
    """``attention.qkv`` or ``layers.attention.qkv`` of layer 5 is ``layers.5.attention.qkv``; ``layers`` is ``layers.5``."""
    if layer is None:
        return name
    unit, _, part = name.partition(".")
    if unit in ("layers", "mtp") and name not in (names.MTP_NORM, names.MTP_PROJECTION):
        return names.layer(layer, part)
    return names.layer(layer, name)


def layer_kinds(model: Model) -> list[bool]:
    """Which layers, multi-token prediction included, have experts."""
    return [kind.moe for kind in model.layers] + [model.layers[-1].moe] * model.mtp_layers
