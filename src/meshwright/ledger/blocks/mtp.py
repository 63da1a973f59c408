"""A multi-token-prediction layer before its decoder layer (DeepSeek-V3, arXiv 2412.19437, section 2.2).

The hidden state and the next token's embedding are normalised, joined (2D) and projected to D; then a decoder layer and
the shared head follow. Embedding and head are looked up and applied once more. T tokens of the stream on this rank.
"""

from __future__ import annotations

from meshwright.ledger.blocks import norm
from meshwright.ledger.writer import Writer
from meshwright.spec import names


def forward(w: Writer) -> None:
    """Two norms and the projection, which every tp rank holds whole and applies to the tokens of its stream."""
    s = w.sizes
    D = s.model.hidden_size
    norm.forward(w, names.MTP_NORM, tag="head_input")  # the hidden state is kept already, as the head's input
    norm.forward(w, names.MTP_NORM)
    joined, stream = s.tensor(f"B/dp, S/{s.stream_axes}, 2D"), s.stream
    w.matmul("forward", names.MTP_PROJECTION, joined, stream, s.stream_tokens, D, 2 * D, saves=(("linear_input", s.bytes(joined)),),
             why="hidden state and next token's embedding, joined; held whole over tp")  # fmt: skip


def backward(w: Writer) -> None:
    """The mirror."""
    s = w.sizes
    D = s.model.hidden_size
    joined, stream = s.tensor(f"B/dp, S/{s.stream_axes}, 2D"), s.stream
    w.linear_backward(names.MTP_PROJECTION, joined, stream, s.stream_tokens, D, 2 * D)
    norm.backward(w, names.MTP_NORM)
    norm.backward(w, names.MTP_NORM)
