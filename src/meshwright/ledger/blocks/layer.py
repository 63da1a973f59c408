"""A decoder layer: attention, then MLP or experts; what it keeps for its backward, and what runs again there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.arithmetic import Num
from meshwright.ledger.blocks import attention, attention_core, embedding, head, mlp, moe, mtp
from meshwright.ledger.rows import Row
from meshwright.ledger.sizes import Sizes
from meshwright.ledger.stages import LayerBlock
from meshwright.ledger.writer import Writer
from meshwright.spec import names


@dataclass(slots=True)
class Sublayer:
    """Attention, or MLP or experts, each with its norm and residual: what layers of different kinds and policies have in common.

    Attributes:
        again: the rows of ``forward`` that full recomputation repeats. core_bytes: the attention core's part of saved_bytes.
    """

    forward: list[Row]
    backward: list[Row]
    again: list[Row]
    saved_bytes: Num
    core_bytes: Num


@dataclass(slots=True)
class Block:
    """The rows of one block for one micro-batch.

    Attributes:
        sublayers: in the order of the forward; a block that is no decoder layer has one.
        again: rows that selective recomputation repeats, which are written for it. repeats: all sublayers run again.
        saved_bytes: kept from its forward to its backward. working_bytes: what is there beside that while its backward
            runs (the saved tensors that recomputation brings back). least: what bounds it from below, the launches of a
            "dense" or a "moe" layer; None for what is no layer.
    """

    name: str
    sublayers: tuple[Sublayer, ...]
    again: list[Row]
    repeats: bool
    saved_bytes: Num
    working_bytes: Num
    least: str | None = None

    @property
    def forward(self) -> list[Row]:
        return [row for part in self.sublayers for row in part.forward]

    @property
    def recompute(self) -> list[Row]:
        return [row.again() for part in self.sublayers for row in part.again] if self.repeats else self.again

    @property
    def backward(self) -> list[Row]:
        return [row for part in reversed(self.sublayers) for row in part.backward]

    def rows(self) -> list[Row]:
        return [*self.forward, *self.recompute, *self.backward]


def attention_sublayer(s: Sizes, window: int | None) -> Sublayer:
    """Attention over all keys, or over ``window`` of them."""
    fw, bw = Writer(s), Writer(s)
    attention.forward(fw, window)
    attention.backward(bw, window)
    return _sublayer(fw, bw, fw.rows)


def feed_forward_sublayer(s: Sizes, with_experts: bool) -> Sublayer:
    """The MLP or the experts."""
    fw, bw = Writer(s), Writer(s)
    (moe if with_experts else mlp).forward(fw)
    (moe if with_experts else mlp).backward(bw)
    return _sublayer(fw, bw, _needed_again(fw.rows, s.stack.recomputes_whole_layer))


def _sublayer(fw: Writer, bw: Writer, again: list[Row]) -> Sublayer:
    return Sublayer(fw.rows, bw.rows, again, saved(fw.rows), saved([row for row in fw.rows if row.kind == "attention"]))


def layer_block(s: Sizes, block: LayerBlock, attends: Sublayer, feeds: Sublayer) -> Block:
    """One decoder layer of two sublayers under its recompute policy (DESIGN section 4, ``recompute``)."""
    everything = attends.saved_bytes + feeds.saved_bytes
    kept: Num = everything
    again: list[Row] = []
    if block.recompute == "selective" and s.stack.selective_operators:
        kept, again = _operators_again(s, [*attends.forward, *feeds.forward])
    elif block.recompute == "selective":
        kept = everything - attends.core_bytes
        core = Writer(s)
        attention_core.recompute(core, block.kind.window)
        again = core.rows
    elif block.recompute == "full":
        kept = s.stream_tokens * s.model.hidden_size * s.act_bytes
    least = "moe" if block.kind.moe else "dense"
    return Block(block.kind.label, (attends, feeds), again, block.recompute == "full", kept, everything - kept, least)


def _operators_again(s: Sizes, rows: list[Row]) -> tuple[Num, list[Row]]:
    """(bytes kept, rows that run again) where every second product's output is kept, attention's and the scatters' too, and all else
    runs again. Products are counted at one half each."""
    kept: Num = s.stream_tokens * s.model.hidden_size * s.act_bytes
    again: list[Row] = []
    for row in rows:
        if row.kind == "attention":
            kept = kept + row.saved_bytes + row.write_bytes
        elif row.kind in ("matmul", "grouped_matmul"):
            kept = kept + row.write_bytes / 2
            again.append(replace(row.again(), flops=row.flops / 2, read_bytes=row.read_bytes / 2, write_bytes=row.write_bytes / 2))
        elif row.op is None or row.op == "all_gather":
            again.append(row.again())
    return kept, again


def _needed_again(rows: list[Row], whole: bool) -> list[Row]:
    """Recomputation may stop at the last tensor that the backward needs: the input of the last weighted sum. The
    reduce after it is never repeated; a stack that repeats whole layers repeats the compute behind it, too."""
    last = next(i for i in range(len(rows) - 1, -1, -1) if rows[i].op is None and rows[i].name in _LAST)
    if not whole:
        return rows[:last]
    return [row for i, row in enumerate(rows) if i <= last or row.op is None]


_LAST = (names.DOWN, names.SHARED_DOWN, names.COMBINE)


def saved(rows: list[Row]) -> Num:
    """Bytes that these forward rows leave for the backward."""
    total: Num = 0
    for row in rows:
        total = total + row.saved_bytes
    return total


def embedding_block(s: Sizes) -> Block:
    """The embedding; its output is the first layer's input and is counted there."""
    return _plain(s, "embedding", embedding)


def head_block(s: Sizes) -> Block:
    """Final norm, head and loss."""
    return _plain(s, "head", head)


def mtp_block(s: Sizes) -> Block:
    """What a multi-token-prediction layer has before its decoder layer."""
    return _plain(s, "mtp", mtp)


def _plain(s: Sizes, name: str, module: object) -> Block:
    fw, bw = Writer(s), Writer(s)
    module.forward(fw)  # type: ignore[attr-defined]
    module.backward(bw)  # type: ignore[attr-defined]
    kept = saved(fw.rows)
    return Block(name, (Sublayer(fw.rows, bw.rows, [], kept, 0),), [], False, kept, 0)
