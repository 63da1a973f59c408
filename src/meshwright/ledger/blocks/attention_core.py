"""The attention core, and what context parallelism sends around it (DESIGN section 4.1).

ring, zigzag, striped: K and V travel round the ring, and in the backward K, V and their gradients; Liu et al., Ring
Attention (arXiv 2310.01889), section 3; striped: Brandon et al. (arXiv 2311.09431).
ulysses: an all_to_all swaps the sequence cut for a head cut (Jacobs et al., arXiv 2309.14509, section 3).
allgather: K and V are gathered (Llama 3, arXiv 2407.21783, section 3.3.2). usp: ulysses inside, a zigzag ring outside (Fang
and Zhao, arXiv 2405.07719).

Letters: T = mb S/cp tokens, N, K, H as ever, Hv head dim of v (H but for latent attention); all local to the rank.
"""

from __future__ import annotations

from meshwright.arithmetic import Num, smaller
from meshwright.ledger.rows import Phase
from meshwright.ledger.sizes import Sizes, at_least_one
from meshwright.ledger.writer import Saves, Writer
from meshwright.spec import names

RING_KINDS = ("ring", "zigzag", "striped", "usp")

SCORE_TRAFFIC_BYTES = 12
"""Bytes that unfused attention moves per score element and pass in 16 bit: product out, mask and softmax in and out, dropout
in and out, product in: six times two bytes (Dao et al., arXiv 2205.14135, section 3.1, algorithm 0, with dropout)."""


def head_dim(s: Sizes) -> int:
    """Width of one head's q and k."""
    a = s.model.attention
    return a.mla.qk_head_dim if a.mla else a.head_dim


def query_bytes(s: Sizes) -> Num:
    """q on this rank: T N/tp H."""
    return s.tokens * s.heads * head_dim(s) * s.act_bytes


def key_value_bytes(s: Sizes) -> Num:
    """k and v on this rank before any exchange: T K/tp (H + Hv)."""
    return s.tokens * s.kv_heads * (head_dim(s) + s.model.attention.v_head_dim) * s.act_bytes


def received(s: Sizes) -> Saves:
    """q, k and v, which the core's backward needs."""
    return (("qkv", query_bytes(s) + key_value_bytes(s)),)


def received_unrotated(s: Sizes) -> Saves:
    """The same, for the row before the core where no rotation comes between."""
    return () if s.model.positions == "rope" else received(s)


def score_pairs(seq: Num, window: int | None, causal: bool = True) -> Num:
    """(query, key) pairs of one sequence: S (S+1) / 2, with a window w(w+1)/2 + (S-w) w, uncausal kernels S^2."""
    if not causal:
        return seq * seq
    w = seq if window is None else smaller(window, seq)
    return w * (w + 1) // 2 + (seq - w) * w


def forward(w: Writer, window: int | None) -> None:
    """What is sent before, the core, what is sent after."""
    _send_before(w, "forward")
    _core_row(w, "forward", window)
    if w.sizes.layout.cp_kind in ("ulysses", "usp"):
        _swap(w, "forward", "B/dp, S/ring, N/(tp,ulysses), Hv", "output", back=True)


def backward(w: Writer, window: int | None) -> None:
    """The mirror: the output's gradient swaps in, the core, the gradients of q, k and v swap or travel back."""
    s = w.sizes
    kind = s.layout.cp_kind
    swaps = kind in ("ulysses", "usp")
    if swaps:
        _swap(w, "backward_input", "B/dp, S/ring, N/(tp,ulysses), Hv", "gradient of the output")
    if kind == "allgather":
        _gather(w, "backward_input")
    if kind in RING_KINDS:
        _ring(w, "backward_input")
    _core_row(w, "backward_input", window)
    if kind in RING_KINDS:
        _ring_gradients(w)
    if kind == "allgather":
        _scatter_gradients(w)
    if swaps:
        _swap_key_value(w, "backward_input", "gradients of k and v")
        _swap(w, "backward_input", "B/dp, S/ring, N/(tp,ulysses), H", "gradient of q", back=True)


def recompute(w: Writer, window: int | None) -> None:
    """The core once more for its backward: what it receives and the core itself; its output is at hand already."""
    _send_before(w, "recompute")
    _core_row(w, "recompute", window)


def _send_before(w: Writer, phase: Phase) -> None:
    kind = w.sizes.layout.cp_kind
    if kind in ("ulysses", "usp"):
        _swap(w, phase, "B/dp, S/ring, N/(tp,ulysses), H", "q")
        _swap_key_value(w, phase, "k and v")
    if kind == "allgather":
        _gather(w, phase)
    if kind in RING_KINDS:
        _ring(w, phase)


def ring_size(s: Sizes) -> Num:
    """Ranks of the ring part of cp."""
    return s.layout.cp // s.layout.ulysses


def is_flash(s: Sizes) -> bool:
    """Whether the kernel leaves the masked half of the scores out and keeps none of them."""
    return s.stack.attention_kernel != "none"


def imbalance(s: Sizes, window: int | None) -> Num:
    """Busiest rank's pairs over the average. Where contiguous chunks meet a causal mask the last one has most: about 2 - 1/cp
    times the average without a window, 1 with one no longer than what precedes the chunk. The other maps balance."""
    ranks = ring_size(s)
    if s.layout.cp_kind != "ring" or not is_flash(s):
        return 1.0 * (ranks >= 1)
    S = s.workload.seq
    total = score_pairs(S, window)
    return 1.0 * (total - score_pairs(S - s.seq_local, window)) * ranks / total


def kv_spread(s: Sizes) -> Num:
    """Ulysses ranks that get a copy of one kv head, where there are fewer heads than ranks."""
    return at_least_one(s.layout.ulysses // s.kv_heads)


def _core_row(w: Writer, phase: Phase, window: int | None) -> None:
    """Flops 2 pairs N (H + Hv) forward. Backward: 2 pairs N (3 H + 2 Hv) with flash attention, which computes the scores
    again (Dao, arXiv 2307.08691, section 3.1), 2 pairs N (2 H + 2 Hv) without."""
    s = w.sizes
    a, H = s.model.attention, head_dim(s)
    flash = is_flash(s)
    pairs = 1.0 * score_pairs(s.workload.seq, window, causal=flash) / ring_size(s)
    heads = s.heads // s.layout.ulysses
    elements = s.layout.mb * pairs * heads
    q, out = s.tensor("B/dp, S/ring, N/(tp,ulysses), H"), s.tensor("B/dp, S/ring, N/(tp,ulysses), Hv")
    moved = query_bytes(s) + key_value_bytes(s) * ring_size(s)
    output = s.bytes(out)
    if phase == "backward_input":
        width = (3 if flash else 2) * H + 2 * a.v_head_dim
        read, write = 2 * moved + 2 * output, moved
    else:
        width, read, write = H + a.v_head_dim, moved, output
    if not flash:
        traffic = elements * SCORE_TRAFFIC_BYTES
        read, write = read + traffic, write + traffic
    saves = _core_saves(s, elements, output) if phase == "forward" else ()
    w.attention(phase, names.CORE, q, out, 2.0 * elements * width, imbalance(s, window), s.seq_local * s.layout.ulysses, read, write, H,
                saves, why="each rank attends with its own heads over the keys that its queries may see")  # fmt: skip


def _core_saves(s: Sizes, elements: Num, output: Num) -> Saves:
    """Beside q, k and v: one statistic per query and head; what ulysses swapped in and not yet out; without flash attention
    the softmax, its dropout mask and its dropped copy, 5 a s^2 b bytes in 16 bit (Korthikanti et al., arXiv 2205.05198, 4.1).
    """
    return (
        ("attention_statistics", s.tokens * s.heads * s.stat_bytes * is_flash(s)),
        ("attention_output", output * (s.layout.ulysses > 1)),
        ("qkv", key_value_bytes(s) * (kv_spread(s) - 1)),
        ("scores", elements * s.act_bytes),
        ("dropout_masks", elements * (1 + s.act_bytes)),
    )


def _ring(w: Writer, phase: Phase) -> None:
    s = w.sizes
    ranks = ring_size(s)
    tensor = s.tensor("B/dp, S/ring, K/(tp,ulysses), H+Hv")
    w.exchange(phase, names.CORE, "ring", ranks, tensor, ranks - 1, names.CORE,
               "queries stay, keys and values travel: each step passes one chunk on")  # fmt: skip


def _ring_gradients(w: Writer) -> None:
    s = w.sizes
    ranks = ring_size(s)
    tensor = s.tensor("B/dp, S/ring, K/(tp,ulysses), H+Hv", dtype=s.stat)
    w.exchange("backward_input", names.CORE, "ring", ranks, tensor, ranks, names.CORE,
               "the gradients of a chunk's keys and values gather summands on their way home")  # fmt: skip


def _gather(w: Writer, phase: Phase) -> None:
    s = w.sizes
    w.move(phase, names.CORE, s.tensor("B/dp, S/cp, K/tp, H+Hv"), s.tensor("B/dp, S, K/tp, H+Hv"), s.layout.cp,
           why="every query chunk needs the keys and values of the whole sequence")  # fmt: skip


def _scatter_gradients(w: Writer) -> None:
    s = w.sizes
    w.move("backward_input", names.CORE, s.tensor("B/dp, S, K/tp, H+Hv", partial="cp"), s.tensor("B/dp, S/cp, K/tp, H+Hv"),
           s.layout.cp, why="each rank has a summand of every key's and value's gradient")  # fmt: skip


def _swap(w: Writer, phase: Phase, dims: str, what: str, back: bool = False) -> None:
    """One all_to_all over the ulysses ranks; the payload is the same on both sides of it."""
    s = w.sizes
    tensor = s.tensor(dims)
    whole = s.tensor(dims.replace("S/ring", "S/cp").replace("N/(tp,ulysses)", "N/tp"))
    before, after = (tensor, whole) if back else (whole, tensor)
    w.collective(phase, names.CORE, "all_to_all", "ulysses", s.layout.ulysses, s.bytes(tensor), before, after,
                 why=f"{what}: the cut moves from {'heads to sequence' if back else 'sequence to heads'}")  # fmt: skip


def _swap_key_value(w: Writer, phase: Phase, what: str) -> None:
    """k and v packed; a kv head that has to serve several ranks travels to each of them."""
    s = w.sizes
    payload = key_value_bytes(s) * kv_spread(s)
    before, after = s.tensor("B/dp, S/cp, K/tp, H+Hv"), s.tensor("B/dp, S/ring, K/(tp,ulysses), H+Hv")
    if phase == "backward_input":
        before, after = after, before
    w.collective(phase, names.CORE, "all_to_all", "ulysses", s.layout.ulysses, payload, before, after,
                 why=f"{what}, packed: the cut moves between sequence and heads")  # fmt: skip
