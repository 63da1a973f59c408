"""What expert parallelism sends under a given load, where the ledger's rows count a balanced one.

Letters: E experts, L = E/ep local ones, D model. Dispatch sends a rank's own copies and receives those for its experts; combine sends
these back. A backward goes the other way round. Over etp, with sp, parts are padded to the largest (DESIGN section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.ledger.rows import Row
from meshwright.ledger.sizes import Sizes
from meshwright.mesh import Mesh
from meshwright.spec import names


@dataclass(frozen=True, slots=True)
class Routed:
    """Payload of one call on one rank, and the rows to and from each rank of its group (all_to_all only)."""

    payload_bytes: int
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()


def routed_rows(row: Row, s: Sizes, load: Any, rank: int, mesh: Mesh) -> Routed | None:
    """The call under a load; None for rows that do not depend on it.

    Args:
        load: int [ranks, E]: copies that each rank sends to each expert in this layer and micro-batch.
    """
    if row.before is None or row.before.dtype != s.act or row.name not in (names.DISPATCH, names.COMBINE, names.EXPERTS):
        return None
    row_bytes = s.model.hidden_size * s.act_bytes
    if row.axis == "ep":
        sent, received = _exchanged(load, rank, mesh, s.local_experts)
        outward = (row.name == names.DISPATCH) == (row.phase in ("forward", "recompute"))
        first, second = (sent, received) if outward else (received, sent)
        return Routed(sum(first) * row_bytes, first, second)
    if row.axis == "etp":
        return Routed(_worked(load, rank, mesh, s) * row_bytes)
    return None


def _exchanged(load: Any, rank: int, mesh: Mesh, local: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Copies that ``rank`` sends to each rank of its ep group, and receives from each."""
    ep = mesh.group_of(rank, "ep")
    own = ep.index(rank)
    sent = tuple(int(load[rank][place * local : (place + 1) * local].sum()) for place in range(len(ep)))
    received = tuple(int(load[source][own * local : (own + 1) * local].sum()) for source in ep)
    return sent, received


def rows_of_experts(s: Sizes, load: Any, rank: int, mesh: Mesh) -> int:
    """Token copies that the experts of ``rank`` work on: with sp those of all its etp ranks."""
    ranks = mesh.group_of(rank, "etp") if s.layout.sp else (rank,)
    return sum(sum(_exchanged(load, other, mesh, s.local_experts)[1]) for other in ranks)


def _worked(load: Any, rank: int, mesh: Mesh, s: Sizes) -> int:
    """Rows of the tensor that etp gathers or sums: with sp every part is padded to the largest of the group."""
    if not s.layout.sp:
        return sum(_exchanged(load, rank, mesh, s.local_experts)[1])
    counts = [sum(_exchanged(load, other, mesh, s.local_experts)[1]) for other in mesh.group_of(rank, "etp")]
    return max(counts) * len(counts)
