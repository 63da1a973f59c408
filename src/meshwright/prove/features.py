"""What a plan exercises, in words: a scaled plan must exercise the same.

Letters: N query heads, K kv heads, m micro-batches.
"""

from __future__ import annotations

from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.rules import padded_vocab
from meshwright.spec.rules.rule import kv_heads
from meshwright.spec.workload import Training


def features(model: Model, workload: Training, layout: Layout) -> dict[str, object]:
    """What must stay: every axis in use, and how sizes and degrees meet."""
    K = kv_heads(model)
    local_kv = max(K // layout.tp, 1)
    found: dict[str, object] = {
        f"{axis} above 1": getattr(layout, axis) > 1 for axis in ("tp", "cp", "ulysses", "dp_replicate", "dp_shard", "pp", "ep")
    }
    found |= {
        "a ring of more than one rank": layout.cp // layout.ulysses > 1,
        "kv heads replicated over tp": layout.tp > K,
        "several query heads for a kv head": model.attention.num_heads > K,
        "kv heads copied to ulysses ranks": layout.ulysses > local_kv,
        "padded vocabulary": padded_vocab(model, layout) > model.vocab_size,
        "several micro-batches": layout.micro_batches(workload.batch) > 1,
        "several sequences in a micro-batch": layout.mb > 1,
        "uneven stages": layout.stages is not None and len(set(layout.stages)) > 1,
        "layers of a chunk that are not recomputed": _partly_recomputed(model, layout),
        "windows shorter than the sequence": frozenset(kind.window is not None and kind.window < workload.seq for kind in model.kinds),
    }
    if model.moe is not None:
        found["etp against tp"] = _etp(layout)
    return found


def luxuries(model: Model, layout: Layout) -> dict[str, object]:
    """What is kept if the ranks allow it, and said to be lost if not."""
    K = kv_heads(model)
    found: dict[str, object] = {
        "kv heads both cut and replicated over tp": layout.tp > K > 1,
        "several kv heads on a rank": layout.tp < K,
        "a stage between the ends of the pipeline": layout.pp > 2,
    }
    if model.moe is not None:
        found["expert state sharded over the rest of the fold"] = layout.edp > 1
        found["all experts of a rank's fold on different ranks"] = layout.ep > 1
    return found


def _partly_recomputed(model: Model, layout: Layout) -> bool:
    longest = max(layout.stages) if layout.stages else model.num_layers // (layout.pp * layout.virtual_stages)
    return layout.recompute_layers is not None and layout.recompute_layers < longest


def _etp(layout: Layout) -> str:
    if layout.etp == layout.tp:
        return "etp is tp"
    if layout.etp == 1:
        return "experts whole"
    return "etp below tp" if layout.etp < layout.tp else "etp above tp"
