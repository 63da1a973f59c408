"""The row of the ledger: one operation or one collective, counted.

Counts may be integers, floats or numpy arrays with one entry per layout (DESIGN principle 2): a formula must not care.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.arithmetic import Num
from meshwright.collectives.volume import wire_bytes
from meshwright.notation import Sharded

Phase = Literal["forward", "recompute", "backward_input", "backward_weight", "reduce", "optimizer", "prefill", "decode"]
Kind = Literal["matmul", "grouped_matmul", "attention", "memory", "collective", "p2p"]


@dataclass(slots=True)
class Row:
    """One operation or collective of one rank.

    Attributes:
        phase: when; ``reduce`` is what happens between the last backward and the optimizer.
        name: module (spec/names.py). kind: how it is priced.
        before, after: the tensor that the row is about, as held and as wanted (collectives), or input and output.
        op: the collective, None for compute. axis: the mesh axis it runs over. reduce_op: of a collective that reduces.
        ranks: size of its group. payload_bytes: DESIGN section 4.1.
        flops: of this rank, averaged over cp ranks where causal attention is uneven.
        imbalance: flops of the busiest rank / flops, which is what the others wait for.
        seq, head_dim: of attention, keys per call and channels of a head.
        read_bytes, write_bytes: memory traffic. shape: (batch, m, n, k) of a matrix product.
        saved_bytes: what the forward row leaves in memory for the backward.
        times: calls per micro-batch (or per step, in step rows); explain multiplies by layers and micro-batches.
        hidden_by: the row behind whose compute this collective can hide, "" if the next op waits for it.
    """

    phase: Phase
    name: str
    kind: Kind
    before: Sharded | None = None
    after: Sharded | None = None
    op: str | None = None
    axis: str | None = None
    ranks: Num = 1
    payload_bytes: Num = 0
    flops: Num = 0.0
    imbalance: Num = 1.0
    read_bytes: Num = 0
    write_bytes: Num = 0
    shape: tuple[Num, Num, Num, Num] | None = None
    seq: Num = 0
    head_dim: int = 128
    saved_bytes: Num = 0
    times: Num = 1
    hidden_by: str = ""
    why: str = ""
    reduce_op: str = "sum"

    @property
    def wire_bytes(self) -> Num:
        """What this rank sends in one call, by the ring (or direct) algorithm."""
        return wire_bytes(self.op, self.payload_bytes, self.ranks) if self.op else 0

    def again(self) -> Row:
        """The same operation in a recomputed forward, which leaves nothing that was not counted already."""
        return Row(
            "recompute", self.name, self.kind, self.before, self.after, self.op, self.axis, self.ranks, self.payload_bytes,
            self.flops, self.imbalance, self.read_bytes, self.write_bytes, self.shape, self.seq, self.head_dim, 0, self.times,
            self.hidden_by, self.why,
        )  # fmt: skip
