"""Attention with grouped heads: q, k, v as one column-parallel matrix, the core, the output as a row-parallel one.

T = mb S/cp tokens, N query and K kv heads, H head dim, D model; the core and what context parallelism sends is in
attention_core.py, latent attention in mla.py.
"""

from __future__ import annotations

from meshwright.arithmetic import Num
from meshwright.ledger.blocks import attention_core as core
from meshwright.ledger.blocks import mla, norm, pairs
from meshwright.ledger.sizes import Sizes
from meshwright.ledger.writer import Writer
from meshwright.spec import names


def forward(w: Writer, window: int | None) -> None:
    """norm, projections, rope, core, output projection, reduce, residual."""
    norm.forward(w, names.ATTENTION_NORM)
    if w.sizes.model.attention.mla is not None:
        mla.project(w)
    else:
        _project(w)
    if w.sizes.model.positions == "rope":
        _rotate(w)
    core.forward(w, window)
    _out(w)
    pairs.leave(w, names.OUT)
    norm.residual(w)


def backward(w: Writer, window: int | None) -> None:
    """The mirror of forward."""
    s = w.sizes
    pairs.leave_backward(w, names.OUT)
    hidden = s.tensor("B/dp, S/cp, NH/tp")
    w.linear_backward(names.OUT, hidden, s.tensor("B/dp, S/cp, D"), s.tokens, s.model.hidden_size, s.local_shape(hidden)[2])
    core.backward(w, window)
    if s.model.positions == "rope":
        _rotate_backward(w)
    if s.model.attention.mla is not None:
        mla.project_backward(w)
    else:
        _project_backward(w)
    norm.backward(w, names.ATTENTION_NORM)


def _project(w: Writer) -> None:
    s = w.sizes
    pairs.enter(w, names.QKV)
    x, qkv = s.tensor("B/dp, S/cp, D"), s.tensor("B/dp, S/cp, QKV/tp")
    stream = s.stream_tokens * s.model.hidden_size * s.act_bytes
    w.matmul("forward", names.QKV, x, qkv, s.tokens, s.local_shape(qkv)[2], s.model.hidden_size,
             saves=(("linear_input", stream), *(() if s.model.attention.qk_norm else core.received_unrotated(s))),
             why="column parallel: each tp rank computes its heads")  # fmt: skip
    if s.model.attention.qk_norm:
        q, size = s.tensor("B/dp, S/cp, N/tp, H"), _query_key_bytes(s)
        statistics = s.tokens * (s.heads + s.kv_heads) * s.stat_bytes
        w.memory("forward", names.Q_NORM, q, q, size, size, why="each head's q and k on their own",
                 saves=(("qk_norm_input", size), ("norm_statistics", statistics), *core.received_unrotated(s)))  # fmt: skip


def _project_backward(w: Writer) -> None:
    s = w.sizes
    x, qkv = s.tensor("B/dp, S/cp, D"), s.tensor("B/dp, S/cp, QKV/tp")
    if s.model.attention.qk_norm:
        q, size = s.tensor("B/dp, S/cp, N/tp, H"), _query_key_bytes(s)
        w.memory("backward_input", names.Q_NORM, q, q, 2 * size, size, why="gradient of the head norms")
    w.linear_backward(names.QKV, x, qkv, s.tokens, s.local_shape(qkv)[2], s.model.hidden_size,
                      between=lambda: pairs.regather(w, names.QKV))  # fmt: skip
    pairs.enter_backward(w, names.QKV)


def _query_key_bytes(s: Sizes) -> Num:
    """q and k on this rank: T (N + K)/tp H."""
    return s.tokens * (s.heads + s.kv_heads) * core.head_dim(s) * s.act_bytes


def _rotate(w: Writer) -> None:
    """Rotary positions on q and k; what it leaves (q, k, v) is what the core's backward needs."""
    s = w.sizes
    tensor, touched = s.tensor("B/dp, S/cp, N/tp, H"), _query_key_bytes(s)
    w.memory("forward", names.ROPE, tensor, tensor, touched, touched, saves=core.received(s), why="q and k turn by their global positions")


def _rotate_backward(w: Writer) -> None:
    s = w.sizes
    tensor, touched = s.tensor("B/dp, S/cp, N/tp, H"), _query_key_bytes(s)
    w.memory("backward_input", names.ROPE, tensor, tensor, touched, touched, why="the gradients turn back")


def _out(w: Writer) -> None:
    s = w.sizes
    hidden = s.tensor("B/dp, S/cp, NH/tp")
    w.matmul("forward", names.OUT, hidden, s.tensor("B/dp, S/cp, D", partial="tp"), s.tokens, s.model.hidden_size,
             s.local_shape(hidden)[2], saves=(("attention_output", s.bytes(hidden)),),
             why="row parallel: each tp rank contributes its heads' summand")  # fmt: skip
