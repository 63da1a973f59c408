"""Rules of the batch and of the number of GPUs. m: micro-batches."""

from __future__ import annotations

from meshwright.spec.rules.candidates import in_words
from meshwright.spec.rules.rule import Bools, Case, Rule
from meshwright.spec.workload import PRECISIONS


def batch_divides(case: Case) -> Bools:
    """Every rank runs the same whole number m of micro-batches: m = batch / (dp_replicate x dp_shard x mb).

    cp cuts sequences, tp and ep do not change the count (DESIGN section 4.2).
    """
    layout = case.layout
    return case.workload.batch % (layout.dp_replicate * layout.dp_shard * layout.mb) == 0


def world_is_gpus(case: Case) -> Bools:
    """One rank per GPU: dp_replicate x dp_shard x cp x tp x pp."""
    layout = case.layout
    world = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp * layout.pp
    return (case.gpus is None) | (world == case.gpus)


def cluster_has_gpus(case: Case) -> Bools:
    """A cluster with a stated number of GPUs has no more of them."""
    layout = case.layout
    world = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp * layout.pp
    most = case.cluster.num_gpus if case.cluster else None
    return (most is None) | (world <= (most or 0))


def zero3_accumulates_in_shards(case: Case) -> Bools:
    """FSDP2 accumulates gradients in the dtype of its shards: a recipe whose gradients are wider than its weights needs zero=2 or less."""
    precision = getattr(case.workload, "precision", None)
    wider = precision is not None and PRECISIONS[precision].gradient != PRECISIONS[precision].weight
    return (not wider) | (case.layout.zero != 3)


def _product(case: Case) -> str:
    layout = case.layout
    return f"tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp {layout.dp_replicate}x{layout.dp_shard} = {layout.world_size}"


def _mb_hint(case: Case) -> str:
    per_rank, rest = divmod(case.workload.batch, case.layout.dp)
    if rest:
        return f"dp = {case.layout.dp} does not divide the batch, whatever mb is"
    values = [mb for mb in range(1, min(per_rank, 64) + 1) if per_rank % mb == 0]
    return f"with this batch mb may be {in_words(values)}"


RULES = (
    Rule(
        code="batch",
        key="batch",
        holds=batch_divides,
        problem=lambda case: f"does not split into micro-batches of mb = {case.layout.mb} over dp = {case.layout.dp}",
        legal=lambda case: f"a multiple of {case.layout.dp * case.layout.mb} (dp {case.layout.dp} x mb {case.layout.mb})",
        hint=_mb_hint,
        value=lambda case: case.workload.batch,
    ),
    Rule(
        code="gpus",
        key="gpus",
        holds=world_is_gpus,
        problem=lambda case: f"but the layout has {case.layout.world_size} ranks",
        legal=_product,
        hint=lambda case: "leave dp out to let the GPU count decide it",
        value=lambda case: case.gpus,
    ),
    Rule(
        code="cluster-gpus",
        key="gpus",
        holds=cluster_has_gpus,
        problem=lambda case: f"ranks are more than the cluster {case.cluster.name if case.cluster else ''} has",
        legal=lambda case: f"up to {case.cluster.num_gpus if case.cluster else None}",
        hint=lambda case: "smaller degrees, or a cluster whose file says a larger num_gpus",
        value=lambda case: case.layout.world_size,
    ),
    Rule(
        code="zero3-precision",
        key="precision",
        holds=zero3_accumulates_in_shards,
        problem=lambda case: "keeps gradients in another dtype than weights, which zero=3 cannot",
        legal=lambda case: ", ".join(name for name, recipe in PRECISIONS.items() if recipe.gradient == recipe.weight),
        hint=lambda case: "zero=3's own recipe is fsdp: fp32 shards and gradients, bf16 compute; or take zero=2",
        value=lambda case: getattr(case.workload, "precision", None),
    ),
)
