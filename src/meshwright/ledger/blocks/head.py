"""Final norm, head and cross-entropy over a vocabulary that is cut over tp (DESIGN section 4.1, "loss").

T tokens, V/tp local columns. Each rank computes its columns of the logits; the loss needs their maximum, and the sum of
exponentials with the target's logit: two small all_reduces instead of one of T x V (Shoeybi et al., arXiv 1909.08053,
section 3). Without ``vocab`` every rank has the whole head, and with sp applies it to the tokens of its stream.
"""

from __future__ import annotations

from meshwright.arithmetic import Num
from meshwright.ledger.blocks import norm, pairs
from meshwright.ledger.sizes import Sizes
from meshwright.ledger.writer import Writer
from meshwright.spec import names


def head_tokens(s: Sizes) -> Num:
    """Tokens whose logits this rank computes."""
    return s.tokens if s.layout.vocab else s.stream_tokens


def forward(w: Writer) -> None:
    """norm, gather (sp), head, loss."""
    s = w.sizes
    D, T = s.model.hidden_size, head_tokens(s)
    norm.forward(w, names.NORM)
    seq = "cp" if s.layout.vocab else s.stream_axes
    x, logits = s.tensor(f"B/dp, S/{seq}, D"), s.tensor(f"B/dp, S/{seq}, V/tp" if s.layout.vocab else f"B/dp, S/{seq}, V")
    if s.layout.vocab:
        pairs.enter(w, names.HEAD)
    why = "column parallel: each tp rank computes its part of the vocabulary" if s.layout.vocab else "every rank has the whole head"
    w.matmul("forward", names.HEAD, x, logits, T, s.vocab, D, why=why,
             saves=(("linear_input", s.stream_tokens * D * s.act_bytes),))  # fmt: skip
    size = T * s.vocab
    kept = size * s.stat_bytes * (s.stack.loss_kernel != "in_place")
    w.memory("forward", names.LOSS, logits, s.tensor(f"B/dp, S/{seq}", dtype=s.stat), size * s.act_bytes, size * s.stat_bytes,
             saves=(("probabilities", kept),), why="softmax in the statistics' dtype")  # fmt: skip
    if s.layout.vocab:
        _statistics(w, T)


def _statistics(w: Writer, T: Num) -> None:
    s = w.sizes
    one, two = "B/dp, S/cp", "2, B/dp, S/cp"
    w.collective("forward", names.LOSS, "all_reduce", "tp", s.layout.tp, T * s.stat_bytes, s.tensor(one, "tp", s.stat),
                 s.tensor(one, dtype=s.stat), reduce_op="max", why="maximum of the logits over the whole vocabulary")  # fmt: skip
    w.collective("forward", names.LOSS, "all_reduce", "tp", s.layout.tp, 2 * T * s.stat_bytes, s.tensor(two, "tp", s.stat),
                 s.tensor(two, dtype=s.stat), why="sum of exponentials, and the target's logit, which one rank has")  # fmt: skip


def backward(w: Writer) -> None:
    """Gradient of the logits (probabilities less the target), of the head, of the norm."""
    s = w.sizes
    D, T = s.model.hidden_size, head_tokens(s)
    seq = "cp" if s.layout.vocab else s.stream_axes
    x, logits = s.tensor(f"B/dp, S/{seq}, D"), s.tensor(f"B/dp, S/{seq}, V/tp" if s.layout.vocab else f"B/dp, S/{seq}, V")
    size = T * s.vocab
    vocab = s.layout.vocab
    steps = s.tensor(f"B/dp, S/{seq}, {'V/tp' if vocab else 'V'}", dtype=s.stat) if s.stack.loss_kernel == "plain" else logits
    w.memory("backward_input", names.LOSS, steps, steps, size * s.stat_bytes, size * s.act_bytes, why="gradient of the logits")
    w.linear_backward(names.HEAD, x, logits, T, s.vocab, D, between=(lambda: pairs.regather(w, names.HEAD)) if vocab else None)
    if vocab:
        pairs.enter_backward(w, names.HEAD)
    norm.backward(w, names.NORM)
