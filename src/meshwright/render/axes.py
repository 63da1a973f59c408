"""The lines by axis as a table."""

from __future__ import annotations

from meshwright.explain.by_axis import AxisLine, AxisTable
from meshwright.explain.letters import formula
from meshwright.explain.symbolic import LETTERS, OF_EXPERTS, SymbolicTable
from meshwright.render.text import Column, table
from meshwright.units import format_seconds, format_traffic

ROUNDING_S = 1e-9
"""What a difference of two sums of seconds may leave."""


def axes_text(found: AxisTable) -> str:
    """One line per axis; an axis that the layout does not use has only its degree."""
    columns: list[Column | str] = [
        Column("axis", fold=False), Column("degree", right=True, fold=False), "cuts", Column("collectives a step", fold=False),
        Column("payload", right=True, fold=False), Column("wire", right=True, fold=False), "tier",
        Column("exposed", right=True, fold=False),
    ]  # fmt: skip
    rows = [_cells(line, found) for line in found.lines]
    parts = found.parts
    busy = f"compute {format_seconds(float(parts.compute_s + parts.recompute_s))}, optimizer {format_seconds(float(parts.optimizer_s))}"
    busy += f", waiting for the host to launch kernels {format_seconds(found.host_s)}" if found.host_s > ROUNDING_S else ""
    where = f"rank {found.rank}" + (f" (stage {found.stage})" if found.layout.pp > 1 else "")
    notes = [
        "",
        f"Bytes are of {where} and one step of {found.micro_batches:,} micro-batches: payload is what the rank passes in (or gets whole), "
        "wire what it sends on a ring.",
        f"Exposed is what the rank waits; beside it {busy}.",
    ]
    return table(f"By axis: {found.layout}", columns, rows, notes=notes)


def _cells(line: AxisLine, found: AxisTable) -> list[object]:
    if not line.calls:
        note = "on the line sp" if line.axis == "tp" and found.layout.sp else ""
        return [line.axis, f"{line.degree:,}", line.cuts, note, "", "", "", ""]
    calls = "\n".join(f"{calls:,} {op}" for op, calls in line.collectives.items())
    return [
        line.axis, f"{line.degree:,}", line.cuts, calls, format_traffic(line.payload_bytes), format_traffic(line.wire_bytes), line.tier,
        format_seconds(line.exposed_s),
    ]  # fmt: skip


def symbolic_text(found: SymbolicTable) -> str:
    """The table in letters: one line per axis and variant, and one more for each further collective of it."""
    columns: list[Column | str] = [
        Column("axis", fold=False), "cuts", Column("collective", fold=False), "calls", "payload bytes", Column("wire", fold=False),
        Column("over n =", fold=False),
    ]  # fmt: skip
    rows: list[list[object]] = []
    for line in found.lines:
        for index, each in enumerate(line.collectives.values()):
            head = ["", ""] if index else [line.axis, line.cuts]
            if each.op == "recv":  # the mirror of a send
                continue
            rows.append([*head, each.op, formula(each.calls), formula(each.payload_bytes), each.wire_per_payload, each.axis])
    sizes = ", ".join(f"{letter} = {size:,}" for letter, size in found.letters.items())
    notes = [
        "",
        "Per rank and step; wire bytes are payload times the factor, on a ring or directly. bf16; 4-byte gradients with zero=3.",
        "zero=1, 2, 3 cut optimizer state, gradients, parameters as well; sp cuts the stream between the tp pairs.",
        *(f"{letter}: {meaning}" for letter, meaning in LETTERS.items() if "E" in found.letters or letter not in OF_EXPERTS),
        f"{found.model}: {sizes}",
    ]
    return table(f"What each axis cuts and sends, for {found.model}", columns, rows, notes=notes)
