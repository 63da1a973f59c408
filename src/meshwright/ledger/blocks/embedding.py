"""The token embedding: rows of the vocabulary over tp, so that each rank looks up its own rows and the sum is the answer."""

from __future__ import annotations

from meshwright.ledger.blocks import norm
from meshwright.ledger.writer import Writer
from meshwright.spec import names


def forward(w: Writer) -> None:
    """Look up, sum over tp (vocabulary cut), add learned positions, norm (BLOOM)."""
    s = w.sizes
    layout, D = s.layout, s.model.hidden_size
    looked_up = s.tokens if layout.vocab else s.stream_tokens
    size = looked_up * D * s.act_bytes
    cut = layout.vocab
    held = s.tensor("B/dp, S/cp, D", partial="tp") if cut else s.stream
    w.memory("forward", names.EMBEDDING, s.tensor("V/tp, D" if cut else "V, D"), held, size, size, saves=(("token_ids", looked_up * 8),),
             why="each rank looks up its rows, zero elsewhere" if cut else "every rank has the whole table")  # fmt: skip
    if cut:
        w.move("forward", names.EMBEDDING, held, s.stream, layout.tp,
               why="a token's row is on one tp rank: the sum brings it to all")  # fmt: skip
    if s.model.positions == "learned":
        norm.residual(w, names.POSITIONS)
    if s.model.embedding_norm:
        norm.forward(w, names.EMBEDDING_NORM)


def backward(w: Writer) -> None:
    """Gather the gradient (sp), add it into the rows of the table."""
    s = w.sizes
    layout, D = s.layout, s.model.hidden_size
    if s.model.embedding_norm:
        norm.backward(w, names.EMBEDDING_NORM)
    stream, whole = s.stream, s.tensor("B/dp, S/cp, D")
    if layout.vocab and layout.sp:
        w.move("backward_input", names.EMBEDDING, stream, whole, layout.tp, why="mirror of the reduce_scatter")
    looked_up = s.tokens if layout.vocab else s.stream_tokens
    size = looked_up * D * s.act_bytes
    table = s.tensor("V/tp, D" if layout.vocab else "V, D", dtype=s.precision.gradient)
    w.memory("backward_weight", names.EMBEDDING, whole if layout.vocab else stream, table, 2 * size, size,
             why="each token's gradient is added to its row")  # fmt: skip
