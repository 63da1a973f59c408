"""Writes rows: the few shapes that operations of a Transformer have, so that a block's file reads as its story.

Letters as in notation.py. Every method appends one row (a linear layer's backward: two) and returns nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from meshwright.arithmetic import Num
from meshwright.ledger.rows import Kind, Phase, Row
from meshwright.ledger.sizes import Sizes
from meshwright.notation import Dim, Sharded
from meshwright.sharding import redistribute
from meshwright.units import DTYPE_BYTES

Saves = tuple[tuple[str, Num], ...]
"""(tag, bytes) of what an operation keeps for its backward; the stack says which tags it really keeps."""


EXPERTS_DIM = Dim("E", ("ep",))


@lru_cache(maxsize=1024)
def weight_gradient(dtype: str, dims: tuple[Dim, ...]) -> Sharded:
    """The gradient of a matrix; one object for equal ones, since tensors are keys of caches."""
    return Sharded(dtype, dims)


class Writer:
    """Appends rows for one block under one set of sizes."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.rows: list[Row] = []
        self._saves = sizes.stack.saves

    def matmul(
        self, phase: Phase, name: str, before: Sharded | None, after: Sharded | None, m: Num, n: Num, k: Num,
        batch: Num = 1, saves: Saves = (), kind: Kind = "matmul", accumulate: bool = False, why: str = "",
    ) -> None:  # fmt: skip
        """``batch`` products of [m, k] and [k, n]: 2 m n k flops each; operands read once, result written once.

        accumulate: the result is a weight gradient that is added to what is there, in the gradient's dtype.
        """
        a = self.sizes.act_bytes
        read, write = batch * (m * k + k * n) * a, batch * m * n * a
        if accumulate:
            write = batch * m * n * int(DTYPE_BYTES[self.sizes.precision.gradient])
            read = read + write
        self.rows.append(Row(
            phase, name, kind, before, after, flops=2.0 * batch * m * n * k, read_bytes=read, write_bytes=write,
            shape=(batch, m, n, k), saved_bytes=self._kept(saves), why=why,
        ))  # fmt: skip

    def linear_backward(
        self, name: str, before: Sharded, after: Sharded, m: Num, n: Num, k: Num, batch: Num = 1,
        kind: Kind = "matmul", between: Any = None,
    ) -> None:  # fmt: skip
        """Backward of a linear layer with m tokens, k inputs and n outputs; ``between`` writes what happens between its
        two products (the gather of a saved input). The weight's gradient is [n, k], in the gradients' dtype, as it is before it
        is added to what other micro-batches left; of grouped products [E/ep, n, k]."""
        self.matmul("backward_input", name, after, before, m, k, n, batch, kind=kind, why="gradient of the input")
        if between is not None:
            between()
        experts = (EXPERTS_DIM,) if kind == "grouped_matmul" else ()
        weight = weight_gradient(self.sizes.precision.gradient, (*experts, after.dims[-1], before.dims[-1]))
        self.matmul("backward_weight", name, after, weight, n, k, m, batch, kind=kind, accumulate=True, why="gradient of the weight")

    def memory(
        self, phase: Phase, name: str, before: Sharded | None, after: Sharded | None, read_bytes: Num, write_bytes: Num,
        saves: Saves = (), why: str = "",
    ) -> None:  # fmt: skip
        """An operation whose time is its memory traffic."""
        self.rows.append(Row(
            phase, name, "memory", before, after, read_bytes=read_bytes, write_bytes=write_bytes,
            saved_bytes=self._kept(saves), why=why,
        ))  # fmt: skip

    def attention(
        self, phase: Phase, name: str, before: Sharded, after: Sharded, flops: Num, imbalance: Num, seq: Num, read_bytes: Num,
        write_bytes: Num, head_dim: int = 128, saves: Saves = (), why: str = "",
    ) -> None:  # fmt: skip
        """The attention core; ``seq`` tokens of keys per call, heads of ``head_dim`` channels."""
        self.rows.append(Row(
            phase, name, "attention", before, after, flops=flops, imbalance=imbalance, seq=seq, read_bytes=read_bytes,
            write_bytes=write_bytes, head_dim=head_dim, saved_bytes=self._kept(saves), why=why,
        ))  # fmt: skip

    def move(self, phase: Phase, name: str, held: Sharded, wanted: Sharded, ranks: Num, hidden_by: str = "", why: str = "") -> None:
        """The collective that turns ``held`` into ``wanted``; its payload is the larger of the two (DESIGN 4.1)."""
        if isinstance(ranks, int) and ranks == 1:
            return
        step = redistribute(held, wanted)
        if step is None or step.op == "slice":
            return
        payload = self.sizes.bytes(wanted if step.op == "all_gather" else held)
        self.collective(phase, name, step.op, step.axis, ranks, payload, held, wanted, hidden_by=hidden_by, why=why or step.why)

    def collective(
        self, phase: Phase, name: str, op: str, axis: str, ranks: Num, payload_bytes: Num, before: Sharded | None = None,
        after: Sharded | None = None, times: Num = 1, hidden_by: str = "", why: str = "", reduce_op: str = "sum",
    ) -> None:  # fmt: skip
        """A collective given by name, where no single tensor's sharding changes (counts, statistics, exchanges).

        A group of one sends nothing: for a single layout the row is left out.
        """
        if isinstance(ranks, int) and ranks == 1:
            return
        kind: Kind = "p2p" if op in ("send", "recv") else "collective"
        self.rows.append(Row(
            phase, name, kind, before, after, op=op, axis=axis, ranks=ranks, payload_bytes=payload_bytes, times=times,
            hidden_by=hidden_by, why=why, reduce_op=reduce_op,
        ))  # fmt: skip

    def exchange(self, phase: Phase, name: str, axis: str, ranks: Num, tensor: Sharded, times: Num, hidden_by: str, why: str) -> None:
        """``times`` steps of passing ``tensor`` round the ring of ``axis``: a send to the next and a recv from the last."""
        payload = self.sizes.bytes(tensor)
        for op in ("send", "recv"):
            self.collective(phase, name, op, axis, ranks, payload, tensor, tensor, times, hidden_by, why)

    def _kept(self, saves: Saves) -> Num:
        total: Num = 0
        for tag, num_bytes in saves:
            if tag in self._saves:
                total = total + num_bytes
        return total
