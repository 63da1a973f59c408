"""All rows of a rank, with how often it executes them in one step; and sums of them over the ranks of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meshwright.ledger import step
from meshwright.ledger.build import Ledger, Stage, step_rows
from meshwright.ledger.rows import Row


def micro_batches(ledger: Ledger) -> float:
    """Micro-batches that each chunk of a rank sees; with dualpipe half of them enter at each end."""
    return ledger.micro_batches / (2 if ledger.layout.schedule == "dualpipe" else 1)


def rank_rows(stage: Stage) -> Iterator[tuple[Row, float]]:
    """(row, calls in one step) of one rank of a stage."""
    ledger, m = stage.ledger, micro_batches(stage.ledger)
    for block, count in stage.blocks():
        for row in block.rows():
            yield row, m * count * row.times
    for unit, count in stage.units():
        for row in [*unit.forward, *unit.backward]:
            yield row, m * count * row.times
    for row in step_rows(stage):
        yield row, row.times
    received, sent = stage.boundaries()
    for row in [*step.boundary(ledger.sizes, "forward", received, sent), *step.boundary(ledger.sizes, "backward_input", sent, received)]:
        yield row, m * row.times


def ranks_per_stage(ledger: Ledger) -> int:
    layout = ledger.layout
    return int(layout.dp * layout.cp * layout.tp)


def flops(ledger: Ledger) -> Counter[tuple[str, str]]:
    """Flops of one step by (phase, module), summed over all ranks."""
    found: Counter[tuple[str, str]] = Counter()
    for stage in ledger.stages():
        for row, calls in rank_rows(stage):
            if row.flops:
                found[row.phase, row.name] += row.flops * calls * ranks_per_stage(ledger)
    return found


def payload_bytes(stage: Stage) -> Counter[tuple[str, str]]:
    """Payload of one step by (op, axis), of one rank."""
    found: Counter[tuple[str, str]] = Counter()
    for row, calls in rank_rows(stage):
        if row.op is not None and row.axis is not None:
            found[row.op, row.axis] += row.payload_bytes * calls
    return found


def wire_bytes(stage: Stage) -> Counter[tuple[str, str]]:
    """What one rank sends in one step by (op, axis)."""
    found: Counter[tuple[str, str]] = Counter()
    for row, calls in rank_rows(stage):
        if row.op is not None and row.axis is not None:
            found[row.op, row.axis] += row.wire_bytes * calls
    return found
