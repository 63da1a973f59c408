"""RMSNorm and LayerNorm on the residual stream, and the residual additions around a block.

T tokens of the stream on this rank (T/tp with sp), D model.
"""

from __future__ import annotations

from meshwright.ledger.writer import Writer
from meshwright.spec import names


def forward(w: Writer, name: str, tag: str = "norm_input") -> None:
    """Reads T D, writes T D; keeps its input, and one statistic per token (two for LayerNorm)."""
    s = w.sizes
    stream = s.stream
    size = s.bytes(stream)
    statistics = s.stream_tokens * s.stat_bytes * s.model.norm_params
    upcast = s.stream_tokens * s.model.hidden_size * s.stat_bytes
    w.memory("forward", name, stream, stream, size, size,
             saves=((tag, size), ("norm_statistics", statistics), ("norm_upcast", upcast)),
             why="per-token operation: each rank normalises the tokens that it holds")  # fmt: skip


def backward(w: Writer, name: str) -> None:
    """Reads the gradient and the saved input, writes the gradient; adds the residual's gradient on the way."""
    s = w.sizes
    stream = s.stream
    size = s.bytes(stream)
    w.memory("backward_input", name, stream, stream, 3 * size, size, why="gradient of the norm, added to the residual's")


def residual(w: Writer, name: str = names.RESIDUAL) -> None:
    """x + block(x): reads both, writes the sum; keeps nothing but a dropout mask where the stack's recipe has dropout."""
    s = w.sizes
    stream = s.stream
    size = s.bytes(stream)
    w.memory("forward", name, stream, stream, 2 * size, size, saves=(("dropout_masks", s.stream_tokens * s.model.hidden_size),),
             why="addition on the tokens at hand")  # fmt: skip
