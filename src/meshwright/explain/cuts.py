"""What each axis cuts, in the letters of the notation with their sizes: ``N 64/8, K 8/8, F 28,672/8``."""

from __future__ import annotations

from meshwright.ledger.build import Ledger
from meshwright.ledger.data_parallel import shard_ranks


def what_is_cut(axis: str, ledger: Ledger) -> str:
    """A few words; "" where the layout does not use the axis."""
    return _CUTS[axis](ledger)


def _dp(ledger: Ledger) -> str:
    layout, batch = ledger.layout, ledger.workload.batch
    words = [f"batch {batch:,}/{layout.dp}"] if layout.dp > 1 else []
    state = {1: "optimizer state", 2: "optimizer state, gradients", 3: "parameters, gradients, optimizer state"}.get(layout.zero)
    if state and shard_ranks(layout) > 1:
        words.append(f"{state} /{shard_ranks(layout)}")
    return "; ".join(words)


def _tp(ledger: Ledger) -> str:
    model, layout = ledger.model, ledger.layout
    if layout.tp == 1:
        return ""
    a = model.attention
    sizes = {"N": a.num_heads} if a.mla else {"N": a.num_heads, "K": a.num_kv_heads}
    if any(not kind.moe for kind in model.kinds):
        sizes["F"] = model.ffn_size
    if model.moe is not None and model.moe.shared_ffn_size:
        sizes["Fs"] = model.moe.shared_ffn_size
    words = [f"{letter} {size:,}/{layout.tp}" for letter, size in sizes.items()]
    if ledger.sizes.kv_copies > 1:
        words.append(f"each kv head on {ledger.sizes.kv_copies} ranks")
    return ", ".join(words)


def _sp(ledger: Ledger) -> str:
    layout, seq = ledger.layout, int(ledger.sizes.seq_local)
    return f"S {seq:,}/{layout.tp} between the tp pairs" if layout.sp else ""


def _cp(ledger: Ledger) -> str:
    layout = ledger.layout
    return f"S {ledger.workload.seq:,}/{layout.cp} everywhere; {_kind(ledger)}" if layout.cp > 1 else ""


def _kind(ledger: Ledger) -> str:
    layout = ledger.layout
    return f"usp={layout.ulysses}x{layout.cp // layout.ulysses}" if layout.cp_kind == "usp" else str(layout.cp_kind)


def _ep(ledger: Ledger) -> str:
    moe, layout = ledger.model.moe, ledger.layout
    if moe is None:
        return ""
    words = [f"E {moe.num_experts}/{layout.ep}"] if layout.ep > 1 else []
    if layout.etp > 1:
        words.append(f"Fe {moe.expert_ffn_size:,}/{layout.etp} (etp)")
    return ", ".join(words)


def _pp(ledger: Ledger) -> str:
    layout = ledger.layout
    return f"L {ledger.model.num_layers}/{layout.pp}; {schedule_word(layout)}" if layout.pp > 1 else ""


def schedule_word(layout: object) -> str:
    """``1f1b``, ``interleaved*2``."""
    schedule, chunks = getattr(layout, "schedule", ""), getattr(layout, "virtual_stages", 1)
    return f"{schedule}*{chunks}" if schedule == "interleaved" else str(schedule)


def _vocab(ledger: Ledger) -> str:
    layout = ledger.layout
    return f"V {ledger.sizes.vocab * layout.tp:,}/{layout.tp}" if layout.vocab and layout.tp > 1 else ""


def _other(ledger: Ledger) -> str:
    return "nothing: scalars of the whole job"


_CUTS = {"dp": _dp, "tp": _tp, "sp": _sp, "cp": _cp, "ep": _ep, "pp": _pp, "vocab": _vocab, "other": _other}
