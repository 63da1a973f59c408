"""Tiny sizes for a model and a workload under given degrees, its structure kept.

Sizes are the smallest that the rules allow, with factors other than 2 where they may have some, so that a wrong multiple shows.
Letters: D model, F ffn, N query heads, K kv heads, H head dim, V vocab, E experts, S sequence, m micro-batches.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.spec.layout import Layout
from meshwright.spec.model import Attention, LayerKind, Mla, Model, Moe, Rope
from meshwright.spec.rules import padded_vocab
from meshwright.spec.rules.pipeline import BIDIRECTIONAL_SCHEDULES

HIDDEN = 36
HEAD_DIM = 8
WINDOW = 5
"""Shorter than any chunk of the sequence's ranks, longer than one token."""


def tiny_model(model: Model, old: Layout, new: Layout, seq: int, old_seq: int) -> Model:
    """``model`` with tiny sizes that fit ``new`` as the true ones fit ``old``."""
    return replace(
        model,
        vocab_size=_vocab(model, old, new),
        hidden_size=HIDDEN,
        ffn_size=10 * new.tp,
        attention=_attention(model.attention, old, new),
        layers=_layers(model, new, seq, old_seq),
        moe=None if model.moe is None else _moe(model.moe, new),
        rope=_rope(model.rope, model.attention.head_dim),
        max_positions=max(seq, 64),
        mtp_layers=min(model.mtp_layers, 2),
    )


def tiny_sequence(layout: Layout) -> int:
    """Three times what cp and sp ask for, and at least 12 tokens."""
    unit = 2 * layout.cp * (layout.tp if layout.sp else 1)
    return unit * max(3, -(-12 // unit))


def tiny_batch(micro_batches: int, layout: Layout) -> int:
    """m: 1 stays 1; else what the schedule asks for, 3 without a pipeline."""
    if micro_batches == 1:
        m = 1
    elif layout.pp == 1:
        m = 3
    else:
        m = 2 * layout.pp if micro_batches >= 2 * layout.pp or layout.schedule in BIDIRECTIONAL_SCHEDULES else layout.pp
    return m * layout.dp * layout.mb


def tiny_layers_per_chunk(layout: Layout) -> int:
    """Two where some layers of a chunk are recomputed and others are not, else one; without a pipeline two."""
    return 2 if layout.recompute_layers is not None or layout.pp == 1 else 1


def _vocab(model: Model, old: Layout, new: Layout) -> int:
    multiple = new.vocab_pad * (new.tp if new.vocab else 1)
    whole = multiple * -(-60 // multiple)
    return whole if padded_vocab(model, old) == model.vocab_size else whole + 1


def _attention(attention: Attention, old: Layout, new: Layout) -> Attention:
    """K: replicated over tp where it was; fewer on a rank than ulysses ranks where they were. N: a multiple of K, more where it was."""
    N, K = attention.num_heads, attention.num_heads if attention.mla else attention.num_kv_heads
    if old.tp > K:
        kv = max(new.tp // 2, 1) if K > 1 else 1
    elif max(K // old.tp, 1) < old.ulysses:
        kv = new.tp * (2 if K > old.tp and new.ulysses > 2 else 1)
    else:
        kv = new.tp * new.ulysses * (2 if K > old.tp * old.ulysses else 1)
    unit = new.tp * new.ulysses
    group = 1 if N == K else 2
    while kv * group % unit:
        group += 1
    mla = attention.mla
    tiny_mla = None
    if mla is not None:
        tiny_mla = Mla(
            q_lora_rank=None if mla.q_lora_rank is None else 12, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8
        )
    head_dim = tiny_mla.qk_head_dim if tiny_mla and attention.head_dim == (mla.qk_head_dim if mla else 0) else HEAD_DIM
    num_kv = kv * group if mla is not None and attention.num_kv_heads == N else kv
    return replace(attention, num_heads=kv * group, num_kv_heads=num_kv, head_dim=head_dim, mla=tiny_mla)


def _moe(moe: Moe, new: Layout) -> Moe:
    """E: a few per rank, more than are chosen; two groups of which one is chosen where groups are."""
    top_k = min(moe.top_k, 2)
    groups, top_groups = (2, 1) if moe.num_groups > 1 else (1, 1)
    if moe.top_groups == moe.num_groups:
        top_groups = groups
    unit = new.ep * groups
    num_experts = unit * max(2, -(-(top_k + 2) // new.ep))
    shared = 0 if not moe.shared_ffn_size else 6 * new.tp
    return replace(
        moe, num_experts=num_experts, top_k=top_k, expert_ffn_size=10 * new.etp, shared_ffn_size=shared,
        num_groups=groups, top_groups=top_groups,
    )  # fmt: skip


def _layers(model: Model, new: Layout, seq: int, old_seq: int) -> tuple[LayerKind, ...]:
    """Every kind once, in the order of their first layers; then the last ones again until the chunks are full."""
    kinds = [_kind(kind, seq, old_seq) for kind in model.kinds]
    if new.stages is not None:
        number = sum(new.stages)
    else:
        chunks = new.pp * new.virtual_stages
        number = chunks * max(tiny_layers_per_chunk(new), -(-len(kinds) // chunks))
    return tuple(kinds + [kinds[-1]] * (number - len(kinds)))[: max(number, len(kinds))]


def _kind(kind: LayerKind, seq: int, old_seq: int) -> LayerKind:
    if kind.window is None:
        return kind
    return replace(kind, window=WINDOW if kind.window < old_seq else 2 * seq)


def _rope(rope: Rope, head_dim: int) -> Rope:
    """Half of a head rotates where only a part did."""
    partial = rope.rotary_dim is not None and rope.rotary_dim < head_dim
    return replace(rope, rotary_dim=HEAD_DIM // 2 if partial else None)
