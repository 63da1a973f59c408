"""The tensor-parallel pair around every block: into a column-parallel layer, out of a row-parallel one.

Shoeybi et al. (arXiv 1909.08053), section 3, call them f and g; Korthikanti et al. (arXiv 2205.05198), section 4.2.2, g and
g-bar with sequence parallelism. DESIGN section 4.1, rows 1 and 2.
"""

from __future__ import annotations

from meshwright.ledger.rows import Phase
from meshwright.ledger.writer import Writer


def enter(w: Writer, name: str, width: str = "D", phase: Phase = "forward") -> None:
    """Before a column-parallel layer: with sp the sequence shards are gathered; without it nothing is sent."""
    s = w.sizes
    if s.layout.sp:
        w.move(phase, name, s.tensor(f"B/dp, S/(cp,tp), {width}"), s.tensor(f"B/dp, S/cp, {width}"), s.layout.tp,
               why="the column-parallel layer needs all tokens of the sequence shards")  # fmt: skip


def leave(w: Writer, name: str, width: str = "D") -> None:
    """After a row-parallel layer: the summands over tp become the sum, sharded over the sequence with sp."""
    s = w.sizes
    held = s.tensor(f"B/dp, S/cp, {width}", partial="tp")
    wanted = s.tensor(f"B/dp, S/{s.stream_axes}, {width}")
    w.move("forward", name, held, wanted, s.layout.tp, why="row-parallel output is a partial sum over tp")


def leave_backward(w: Writer, name: str, width: str = "D") -> None:
    """Into a row-parallel layer's backward: with sp the gradient's shards are gathered."""
    s = w.sizes
    if s.layout.sp:
        w.move("backward_input", name, s.tensor(f"B/dp, S/(cp,tp), {width}"), s.tensor(f"B/dp, S/cp, {width}"), s.layout.tp,
               why="mirror of the reduce_scatter: the row-parallel layer needs the gradient of all tokens")  # fmt: skip


def regather(w: Writer, name: str, width: str = "D") -> None:
    """With sp a column-parallel layer keeps its input sharded, and gathers it again for the weight's gradient."""
    s = w.sizes
    if s.layout.sp:
        w.move("backward_weight", name, s.tensor(f"B/dp, S/(cp,tp), {width}"), s.tensor(f"B/dp, S/cp, {width}"), s.layout.tp,
               why="the input was saved sharded; the weight's gradient needs all tokens")  # fmt: skip


def enter_backward(w: Writer, name: str, width: str = "D") -> None:
    """Out of a column-parallel layer's backward: the input's gradient is a partial sum over tp."""
    s = w.sizes
    held = s.tensor(f"B/dp, S/cp, {width}", partial="tp")
    wanted = s.tensor(f"B/dp, S/{s.stream_axes}, {width}")
    w.move("backward_input", name, held, wanted, s.layout.tp, why="column-parallel input gradient is a partial sum over tp")
