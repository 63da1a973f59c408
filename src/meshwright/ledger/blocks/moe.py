"""Mixture of experts: router, dispatch over ep, grouped experts (cut by etp), combine, shared expert (DESIGN section 4.1).

Letters: T tokens that this rank routes (of its stream), X = T top_k token copies that it sends, and receives under a
balanced load; E experts, Fe ffn of one expert. With sp the etp ranks hold different tokens and gather their copies (X etp
rows); without sp they hold the same tokens and sum their outputs.
"""

from __future__ import annotations

from meshwright.arithmetic import Num
from meshwright.ledger.blocks import mlp, norm, pairs
from meshwright.ledger.rows import Phase
from meshwright.ledger.sizes import Sizes
from meshwright.ledger.writer import Writer
from meshwright.notation import Sharded
from meshwright.spec import names
from meshwright.spec.model import Moe


def _moe(s: Sizes) -> Moe:
    assert s.model.moe is not None
    return s.model.moe


def forward(w: Writer) -> None:
    """norm, router, dispatch, experts, combine, shared expert, residual."""
    s = w.sizes
    moe = _moe(s)
    norm.forward(w, names.MOE_NORM)
    _route(w)
    _send(w, "forward", names.DISPATCH, "each token copy goes to the rank that holds its expert", counts=True)
    if s.layout.sp:
        w.move("forward", names.EXPERTS, *_gathered(s), s.layout.etp, why="every etp rank works on a slice of each expert's ffn")
    _experts(w)
    _reduce(w, "forward", "each etp rank holds a summand of the experts' output")
    _send(w, "forward", names.COMBINE, "the experts' outputs go back to their tokens' ranks")
    size = s.bytes(_copies(s))
    stream = s.stream
    w.memory("forward", names.COMBINE, _copies(s), stream, size, s.bytes(stream), saves=(("expert_output", size),),
             why="weighted sum of the top k copies")  # fmt: skip
    if moe.shared_ffn_size:
        pairs.enter(w, names.SHARED_GATE_UP)
        mlp.feed_forward(w, names.SHARED_GATE_UP, names.SHARED_ACTIVATION, names.SHARED_DOWN, "Fs", keeps_input=False)
        pairs.leave(w, names.SHARED_DOWN)
    norm.residual(w)


def backward(w: Writer) -> None:
    """The mirror of forward."""
    s = w.sizes
    moe = _moe(s)
    if moe.shared_ffn_size:
        pairs.leave_backward(w, names.SHARED_DOWN)
        mlp.feed_forward_backward(w, names.SHARED_GATE_UP, names.SHARED_ACTIVATION, names.SHARED_DOWN, "Fs")
        pairs.enter_backward(w, names.SHARED_GATE_UP)
    size = s.bytes(_copies(s))
    stream = s.stream
    w.memory("backward_input", names.COMBINE, stream, _copies(s), s.bytes(stream) + size, size,
             why="gradients of the copies and of their weights")  # fmt: skip
    _send(w, "backward_input", names.COMBINE, "the outputs' gradients go to the experts")
    if s.layout.sp:
        w.move("backward_input", names.EXPERTS, *_gathered(s), s.layout.etp, why="mirror of the reduce_scatter over etp")
    _experts_backward(w)
    _reduce(w, "backward_input", "each etp rank holds a summand of the copies' gradient")
    _send(w, "backward_input", names.DISPATCH, "the copies' gradients go back to their tokens")
    logits = s.tensor(f"B/dp, S/{s.stream_axes}, E", dtype=s.stat)
    w.memory("backward_input", names.ROUTER, logits, logits, 2 * s.bytes(logits), s.bytes(logits), why="gradient of the choice's weights")
    w.linear_backward(names.ROUTER, stream, s.tensor(f"B/dp, S/{s.stream_axes}, E"), s.routed_tokens, moe.num_experts, s.model.hidden_size)
    norm.backward(w, names.MOE_NORM)


def _route(w: Writer) -> None:
    s = w.sizes
    moe, D = _moe(s), s.model.hidden_size
    stream, logits = s.stream, s.tensor(f"B/dp, S/{s.stream_axes}, E", dtype=s.stat)
    w.matmul("forward", names.ROUTER, stream, s.tensor(f"B/dp, S/{s.stream_axes}, E"), s.routed_tokens, moe.num_experts, D,
             saves=(("linear_input", s.bytes(stream)),), why="each rank scores the experts for the tokens of its stream")  # fmt: skip
    # of each copy its expert, its place when sorted by expert, its weight; of the balance loss its two sums
    choice = s.dispatched_rows * (8 + 8 + s.stat_bytes) + 2 * moe.num_experts * s.stat_bytes * (moe.aux_loss_coefficient > 0)
    w.memory("forward", names.ROUTER, logits, logits, 2 * s.bytes(logits), s.bytes(logits),
             saves=(("router_logits", s.bytes(logits)), ("routing", choice)), why="top k of the scores")  # fmt: skip
    if moe.aux_loss_coefficient:
        for axis, ranks in (("cp", s.layout.cp), ("tp", s.layout.tp)) if s.layout.sp else (("cp", s.layout.cp),):
            w.collective("forward", names.ROUTER, "all_reduce", axis, ranks, 2 * moe.num_experts * s.stat_bytes,
                         s.tensor("2, E", axis, s.stat), s.tensor("2, E", dtype=s.stat),
                         why="the balance loss is of the whole micro-batch: loads and mean scores per expert")  # fmt: skip


def _send(w: Writer, phase: Phase, name: str, why: str, counts: bool = False) -> None:
    """The uneven all_to_all over ep, the local permutation before it, and for dispatch the counts that size it."""
    s = w.sizes
    rows = _copies(s)
    size = s.bytes(rows)
    w.memory(phase, name, rows, rows, 2 * size, 2 * size, why="token copies are sorted by expert, and back")
    if counts:
        w.collective(phase, name, "all_to_all", "ep", s.layout.ep, 8 * _moe(s).num_experts, s.tensor("E", dtype="int64"),
                     s.tensor("E", dtype="int64"), why="how many copies each rank will receive for each of its experts")  # fmt: skip
    if counts and s.layout.sp:
        own, all_counts = s.tensor("E*etp/(ep,etp)", dtype="int64"), s.tensor("E*etp/ep", dtype="int64")
        w.collective(phase, names.EXPERTS, "all_gather", "etp", s.layout.etp, s.bytes(all_counts), own, all_counts,
                     why="parts of unequal length are gathered, padded to the longest")  # fmt: skip
    w.collective(phase, name, "all_to_all", "ep", s.layout.ep, size, rows, rows, why=why)


def _experts(w: Writer) -> None:
    s = w.sizes
    D = s.model.hidden_size
    m, up, hidden = _expert_shape(s)
    rows, wide, narrow = _worked(s), s.tensor("X*etp, UFe/etp"), s.tensor("X*etp, Fe/etp")
    wide_bytes, hidden_bytes = s.expert_rows * up * s.act_bytes, s.expert_rows * hidden * s.act_bytes
    w.matmul("forward", names.EXPERTS, rows, wide, m, up, D, s.local_experts, kind="grouped_matmul",
             saves=(("expert_input", s.expert_rows * D * s.act_bytes),), why="grouped product: one per local expert")  # fmt: skip
    extra = (("silu_output", hidden_bytes),) if s.model.gated else ()
    w.memory("forward", names.EXPERTS, wide, narrow, wide_bytes, hidden_bytes, saves=(("expert_gate_up_output", wide_bytes), *extra),
             why="elementwise on the rank's own channels")  # fmt: skip
    w.matmul("forward", names.EXPERTS, narrow, rows, m, D, hidden, s.local_experts, kind="grouped_matmul",
             saves=(("expert_down_input", hidden_bytes),), why="grouped product: one per local expert")  # fmt: skip


def _experts_backward(w: Writer) -> None:
    s = w.sizes
    D = s.model.hidden_size
    m, up, hidden = _expert_shape(s)
    rows, wide, narrow = _worked(s), s.tensor("X*etp, UFe/etp"), s.tensor("X*etp, Fe/etp")
    wide_bytes, hidden_bytes = s.expert_rows * up * s.act_bytes, s.expert_rows * hidden * s.act_bytes
    w.linear_backward(names.EXPERTS, narrow, rows, m, D, hidden, s.local_experts, kind="grouped_matmul")
    w.memory("backward_input", names.EXPERTS, narrow, wide, wide_bytes + hidden_bytes, wide_bytes, why="gradient of the activation")
    w.linear_backward(names.EXPERTS, rows, wide, m, up, D, s.local_experts, kind="grouped_matmul")


def _expert_shape(s: Sizes) -> tuple[Num, Num, Num]:
    """Rows of one expert (an average, hence not always whole), and its local up and hidden widths."""
    moe = _moe(s)
    hidden = moe.expert_ffn_size // s.layout.etp
    return s.expert_rows / s.local_experts, (2 if s.model.gated else 1) * hidden, hidden


def _reduce(w: Writer, phase: Phase, why: str) -> None:
    """Over etp: with sp each rank wants its own copies' sum, without sp all want all."""
    s = w.sizes
    if s.layout.sp:
        wanted, held = s.tensor("X*etp/etp, D"), s.tensor("X*etp, D", partial="etp")
    else:
        wanted, held = s.tensor("X, D"), s.tensor("X, D", partial="etp")
    w.move(phase, names.EXPERTS, held, wanted, s.layout.etp, why=why)


def _gathered(s: Sizes) -> tuple[Sharded, Sharded]:
    return s.tensor("X*etp/etp, D"), s.tensor("X*etp, D")


def _copies(s: Sizes) -> Sharded:
    """The token copies that a rank sends and receives."""
    return s.tensor("X, D")


def _worked(s: Sizes) -> Sharded:
    """The token copies that a rank's experts work on."""
    return s.tensor("X*etp, D")
