"""The dense MLP: gate and up as one column-parallel matrix, an activation, down as a row-parallel one.

T tokens after the gather, D model, F ffn; U = 2 with a gate, else 1.
"""

from __future__ import annotations

from meshwright.ledger.blocks import norm, pairs
from meshwright.ledger.writer import Writer
from meshwright.spec import names


def forward(w: Writer) -> None:
    """norm, gather (sp), gate_up, activation, down, reduce, residual."""
    norm.forward(w, names.MLP_NORM)
    pairs.enter(w, names.GATE_UP)
    feed_forward(w, names.GATE_UP, names.ACTIVATION, names.DOWN, "F")
    pairs.leave(w, names.DOWN)
    norm.residual(w)


def backward(w: Writer) -> None:
    """The mirror; with sp the gradient and the saved input are gathered, the input's gradient is scattered."""
    pairs.leave_backward(w, names.DOWN)
    feed_forward_backward(w, names.GATE_UP, names.ACTIVATION, names.DOWN, "F")
    pairs.enter_backward(w, names.GATE_UP)
    norm.backward(w, names.MLP_NORM)


def feed_forward(w: Writer, up_name: str, activation_name: str, down_name: str, letter: str, keeps_input: bool = True) -> None:
    """The two products and the activation between them, on whole tokens; also the shared expert's (letter Fs),
    whose input the router keeps already."""
    s = w.sizes
    up, x = s.tensor(f"B/dp, S/cp, U{letter}/tp"), s.tensor("B/dp, S/cp, D")
    hidden = s.tensor(f"B/dp, S/cp, {letter}/tp")
    n_up, n_hidden = s.local_shape(up)[2], s.local_shape(hidden)[2]
    D = s.model.hidden_size
    stream = s.stream_tokens * D * s.act_bytes
    w.matmul("forward", up_name, x, up, s.tokens, n_up, D, saves=(("linear_input", stream * keeps_input),),
             why="column parallel: each tp rank computes its rows of the ffn")  # fmt: skip
    read, write = s.bytes(up), s.bytes(hidden)
    extra = (("silu_output", write),) if s.model.gated else ()
    w.memory("forward", activation_name, up, hidden, read, write, saves=(("gate_up_output", read), *extra),
             why="elementwise on the rank's own channels")  # fmt: skip
    w.matmul("forward", down_name, hidden, s.tensor("B/dp, S/cp, D", partial="tp"), s.tokens, D, n_hidden,
             saves=(("down_input", write),), why="row parallel: each tp rank contributes one summand")  # fmt: skip


def feed_forward_backward(w: Writer, up_name: str, activation_name: str, down_name: str, letter: str) -> None:
    """Gradients of the two products and of the activation."""
    s = w.sizes
    up, x = s.tensor(f"B/dp, S/cp, U{letter}/tp"), s.tensor("B/dp, S/cp, D")
    hidden = s.tensor(f"B/dp, S/cp, {letter}/tp")
    n_up, n_hidden = s.local_shape(up)[2], s.local_shape(hidden)[2]
    D = s.model.hidden_size
    w.linear_backward(down_name, hidden, x, s.tokens, D, n_hidden)
    read, write = s.bytes(up) + s.bytes(hidden), s.bytes(up)
    w.memory("backward_input", activation_name, hidden, up, read, write, why="gradient of the activation")
    w.linear_backward(up_name, x, up, s.tokens, n_up, D, between=lambda: pairs.regather(w, up_name))
