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

from meshwright.ledger.blocks.layer import Block
from meshwright.ledger.build import Ledger, scalar_rows
from meshwright.ledger.data_parallel import Unit
from meshwright.ledger.rows import Row
from meshwright.ledger.stages import layer_blocks
from meshwright.spec import names
from meshwright.spec.model import Model


@dataclass(frozen=True, slots=True)
class Placed:
    """One call of a row: where in the step it happens.

    Attributes:
        module: full name, with the layer's number. layer: that number, None outside of layers.
        micro_batch: None for what happens once per step.
    """

    row: Row
    module: str
    layer: int | None
    micro_batch: int | None


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


def pieces(ledger: Ledger) -> list[Piece]:
    """The model of one rank without pipeline stages, in the order of the forward pass."""
    layout, model = ledger.layout, ledger.model
    blocks = layer_blocks(model, 0, model.num_layers, layout.recompute, layout.recompute_layers)
    embedding, head = Piece((ledger.embedding,)), Piece((ledger.head,))
    layers = [Piece((ledger.layer(block),), index, ledger.layer_unit(block.kind)) for index, block in enumerate(blocks)]
    found = [embedding, *layers, head]
    for index in range(model.num_layers, model.num_layers + model.mtp_layers):
        found += [embedding, Piece((ledger.mtp, ledger.layer(ledger.mtp_layer)), index, ledger.mtp_unit), head]
    return found


def step_order(ledger: Ledger) -> Iterator[Placed]:
    """Every collective and P2P of one step of a layout without pipeline stages.

    Raises:
        ValueError: with pp > 1, whose order is its schedule's.
    """
    if ledger.layout.pp > 1:
        raise ValueError("the order of a pipelined step is its schedule's")
    model_pieces = pieces(ledger)
    units = _units(model_pieces)
    root, zero = ledger.root(True, True), ledger.layout.zero
    scalars = scalar_rows(ledger)
    yield from _placed([row for row in scalars if row.name == names.TOKEN_COUNT])
    last = int(ledger.micro_batches) - 1
    keep = ledger.layout.zero_variant == "keep"
    for micro_batch in range(last + 1):
        gathers = root.step if keep and micro_batch == 0 else root.forward
        yield from _placed(_of(gathers, "all_gather", "forward"), micro_batch=micro_batch)
        yield from _forward(model_pieces, micro_batch, keep)
        yield from _backward(model_pieces, units, micro_batch, micro_batch == last, zero)
        yield from _placed(root.backward, micro_batch=micro_batch)
    yield from _leaving(root, None, last, zero)
    for chosen in (_tensor_sums, _replica_sums(zero)):
        yield from _of_units(units, root, chosen)
    yield from _placed([row for row in scalars if row.name == names.GRADIENT_NORM])
    yield from _of_units(units, root, lambda row: row.name == names.ROUTER)
    yield from _of_units(units, root, lambda row: row.phase == "optimizer")


def _tensor_sums(row: Row) -> bool:
    return row.phase == "reduce" and row.axis == "tp"


def _replica_sums(zero: int) -> Callable[[Row], bool]:
    """Replicas of a shard; FSDP2 sums them with each unit."""
    return lambda row: row.phase == "reduce" and row.axis == "dp_replicate" and zero < 3


def _leaving(unit: Unit, layer: int | None, last: int, zero: int) -> Iterator[Placed]:
    """What a unit sends as soon as the last backward has completed it; FSDP2 counts that to the micro-batch."""
    replicas = _replica_sums(zero)
    rows = [row for row in unit.step if row.phase == "reduce" and row.name != names.ROUTER and not _tensor_sums(row) and not replicas(row)]
    yield from _placed(rows, layer, last if zero == 3 else None)


def _of_units(units: dict[int, Unit], root: Unit, chosen: Callable[[Row], bool]) -> Iterator[Placed]:
    """Some of the rows of each step, in model order, the root at last."""
    for layer, unit in units.items():
        yield from _placed(filter(chosen, unit.step), layer)
    yield from _placed(filter(chosen, root.step))


def _of(rows: Iterable[Row], op: str, phase: str) -> list[Row]:
    return [row for row in rows if row.op == op and row.phase == phase]


def _units(model_pieces: Sequence[Piece]) -> dict[int, Unit]:
    """The unit of each layer, in the order of the forward pass."""
    return {piece.layer: piece.unit for piece in model_pieces if piece.layer is not None and piece.unit is not None}


def _forward(model_pieces: Sequence[Piece], micro_batch: int, keep: bool) -> Iterator[Placed]:
    for piece in model_pieces:
        if piece.unit is not None:
            rows = piece.unit.step if keep and micro_batch == 0 else piece.unit.forward
            yield from _placed(_of(rows, "all_gather", "forward"), piece.layer, micro_batch)
        for block in piece.blocks:
            yield from _placed(block.forward, piece.layer, micro_batch)


def _backward(model_pieces: Sequence[Piece], units: dict[int, Unit], micro_batch: int, last: bool, zero: int) -> Iterator[Placed]:
    """Pieces in reverse. Each unit is gathered when the one after it starts, the last layer's when the root does."""
    ahead = reversed(units)
    yield from _gather_next(units, ahead, micro_batch)
    for piece in reversed(model_pieces):
        if piece.unit is not None:
            yield from _gather_next(units, ahead, micro_batch)
        for block in reversed(piece.blocks):
            yield from _placed(_backward_rows(block), piece.layer, micro_batch)
        if piece.unit is not None:
            yield from _placed([row for row in piece.unit.backward if row.op != "all_gather"], piece.layer, micro_batch)
        if piece.unit is not None and last:
            yield from _leaving(piece.unit, piece.layer, micro_batch, zero)


def _gather_next(units: dict[int, Unit], ahead: Iterator[int], micro_batch: int) -> Iterator[Placed]:
    for layer in islice(ahead, 1):
        yield from _placed(_of(units[layer].backward, "all_gather", "backward_input"), layer, micro_batch)


def _backward_rows(block: Block) -> list[Row]:
    """The backward, with the recomputation where it is first needed: nothing that was saved goes into the collectives that only mirror
    the forward's last ones."""
    rows = block.backward
    if not block.recompute:
        return rows
    of_core = all(row.name == names.CORE for row in block.recompute)
    needs = [(row.name == names.CORE and row.op != "all_to_all") if of_core else row.op is None for row in rows]
    first = needs.index(True)
    return [*rows[:first], *block.recompute, *rows[first:]]


def _placed(rows: Iterable[Row], layer: int | None = None, micro_batch: int | None = None) -> Iterator[Placed]:
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
