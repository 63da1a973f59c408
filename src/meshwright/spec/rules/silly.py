"""Soft rules: layouts that run and are hardly what was meant. Each says what it costs and what to do instead.

What depends on the network is said only when the cluster is known. Letters: K kv heads, S sequence, V vocab,
p stages, v chunks per rank, m micro-batches.
"""

from __future__ import annotations

from meshwright.spec.cluster import Tier
from meshwright.spec.rules.rule import Case, Caution
from meshwright.spec.rules.tensor import padded_vocab
from meshwright.spec.workload import Training
from meshwright.units import format_rate

MICRO_BATCHES_PER_STAGE = 4
"""Fewer micro-batches than this for each stage leave 1f1b idle for more than a fifth of the step: (p-1)/(m+p-1)."""

INTERLEAVING_BANDWIDTH_BYTES_PER_S = 25e9
"""The fabric on which interleaving was shown to pay: eight 200 Gb/s cards for eight GPUs (Narayanan et al. 2021,
arXiv 2104.04473, section 5). It sends v times the messages."""

WASTED_VOCAB = 0.05
"""Share of padding rows of the vocabulary that is worth a word; GPT-2's 50,257 padded to 51,200 by Megatron is 0.019."""

CLOSED_FORM_SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Schedules whose idle share is (p-1)/(v m + p-1) (Narayanan et al. 2021, section 2.2)."""


def _crosses(case: Case, axis: str) -> bool:
    """Whether ``axis`` leaves the innermost tier."""
    tier = case.tier(axis)
    return case.cluster is not None and tier is not None and tier != case.cluster.tiers[0]


def _speeds(case: Case, axis: str) -> str:
    """``ethernet at 50 GB/s instead of nvlink at 450 GB/s per GPU``."""
    tier = case.tier(axis)
    assert case.cluster is not None and tier is not None
    inner: Tier = case.cluster.tiers[0]
    slow, fast = format_rate(tier.loaded_bandwidth_bytes_per_s), format_rate(inner.loaded_bandwidth_bytes_per_s)
    return f"{tier.name} at {slow} instead of {inner.name} at {fast} per GPU"


def _node(case: Case) -> int:
    return case.cluster.gpus_per_node if case.cluster else 1


def tp_crosses_nodes(case: Case) -> bool:
    """Every layer waits for its tensor-parallel collectives, forward and backward; they belong on the fastest links."""
    return _crosses(case, "tp")


def ep_crosses_nodes(case: Case) -> bool:
    """Dispatch and combine send top_k copies of every token; across nodes they can outlast the experts' compute."""
    return case.model.moe is not None and _crosses(case, "ep")


def ulysses_crosses_nodes(case: Case) -> bool:
    """The attention waits for Ulysses' all_to_all of q, k and v, unlike a ring's exchange, which runs beside it."""
    return case.layout.ulysses > 1 and _crosses(case, "ulysses")


def few_micro_batches(case: Case) -> bool:
    """A pipeline fills and drains once per step: the fewer micro-batches, the larger the idle share."""
    layout = case.layout
    few = isinstance(case.workload, Training) and layout.pp > 1 and case.micro_batches < _enough(case)
    return few and layout.schedule != "naive"


def one_stage_at_a_time(case: Case) -> bool:
    """Naive model parallelism finishes a micro-batch before it starts the next: p GPUs do the work of one."""
    return case.layout.pp > 1 and case.layout.schedule == "naive"


def _enough(case: Case) -> int:
    return MICRO_BATCHES_PER_STAGE * case.layout.pp


def _idle(case: Case) -> str:
    p, v, m = case.layout.pp, case.layout.virtual_stages, case.micro_batches
    if case.layout.schedule not in CLOSED_FORM_SCHEDULES:
        return f"m = {m} micro-batches are few for p = {p} stages"
    return f"m = {m} micro-batches over p = {p} stages leave each rank idle for {(p - 1) / (v * m + p - 1):.0%} of the step"


def sp_left_off(case: Case) -> bool:
    """Reduce_scatter and all_gather move what the all_reduce moves, and norms, dropout and residuals are then held once
    per tp group (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2)."""
    layout = case.layout
    return layout.tp > 1 and not layout.sp and case.sequence > 0 and case.sequence % (layout.tp * layout.cp) == 0


def interleaving_on_slow_fabric(case: Case) -> bool:
    """Interleaving divides the bubble by v and multiplies the messages by v."""
    tier = case.tier("pp")
    slow = tier is not None and tier.loaded_bandwidth_bytes_per_s < INTERLEAVING_BANDWIDTH_BYTES_PER_S
    return slow and case.layout.schedule == "interleaved"


def gathers_every_micro_batch(case: Case) -> bool:
    """FSDP's traffic is per micro-batch, ZeRO-1's per step: with many micro-batches they differ by that number."""
    layout = case.layout
    sharded = layout.zero == 3 and layout.zero_variant != "keep" and layout.dp_shard * layout.cp > 1
    return sharded and isinstance(case.workload, Training) and case.micro_batches > (1 if layout.pp > 1 else 4)


def reduces_every_micro_batch(case: Case) -> bool:
    """ZeRO-2 saves memory by reducing gradients as they come; in a pipeline that is once per micro-batch."""
    layout = case.layout
    return layout.zero == 2 and layout.pp > 1 and layout.dp_shard * layout.cp > 1 and case.micro_batches > 1


def nothing_to_shard(case: Case) -> bool:
    """ZeRO shards over dp_shard x cp; replicas keep whole copies."""
    return case.layout.zero > 0 and case.layout.dp_shard * case.layout.cp == 1


def kv_heads_are_copied(case: Case) -> bool:
    """Grouped-query attention has K heads to share; more tp ranks than that copy them and sum their gradients."""
    return case.layout.tp > case.num_kv_heads


def causal_work_is_uneven(case: Case) -> bool:
    """Under a causal mask late tokens see more: chunk r of cp does (2 r + 1) of cp^2 parts of the work."""
    return case.layout.cp > 1 and case.layout.cp_kind == "ring"


def beyond_trained_positions(case: Case) -> bool:
    """Rotary positions are defined beyond max_positions, where the model was not trained."""
    return case.model.positions == "rope" and case.workload.seq > case.model.max_positions


def _padded(case: Case) -> int:
    rows: int = padded_vocab(case.model, case.layout)
    return rows


def vocab_is_wasted(case: Case) -> bool:
    """Padding rows are computed in the head and masked out of the loss."""
    return _padded(case) > (1 + WASTED_VOCAB) * case.model.vocab_size


def vocab_is_whole(case: Case) -> bool:
    """The logits of one micro-batch are its largest tensor: T x V in fp32."""
    return case.layout.tp > 1 and not case.layout.vocab


def micro_batch_is_thin(case: Case) -> bool:
    """Fewer rows than the device has flops per byte: a bf16 GEMM of T rows does T flops for each byte of weights (roofline)."""
    return isinstance(case.workload, Training) and 0 < case.layout.mb * case.sequence // case.layout.cp < _balance(case)


def _balance(case: Case) -> float:
    """bf16 flops (float16 where there is no bf16) for each byte from memory."""
    if case.cluster is None:
        return 0.0
    device = case.cluster.device
    return (device.peak("bf16") or device.peak("float16") or 0.0) / device.hbm_bandwidth_bytes_per_s


def node_is_not_full(case: Case) -> bool:
    """Groups that do not divide the nodes straddle them, and GPUs stay idle."""
    world = case.layout.world_size
    return case.cluster is not None and world > _node(case) and world % _node(case) != 0


CAUTIONS = (
    Caution(
        code="tp-across-nodes",
        applies=tp_crosses_nodes,
        message=lambda case: f"tp = {case.layout.tp} spans {_speeds(case, 'tp')}, and every layer waits for it several times",
        remedy=lambda case: f"keep tp within the {_node(case)} GPUs of a node; pp or dp (zero=3) across nodes",
    ),
    Caution(
        code="ep-across-nodes",
        applies=ep_crosses_nodes,
        message=lambda case: f"ep = {case.layout.ep} sends each token's copies over {_speeds(case, 'ep')}",
        remedy=lambda case: f"ep x etp of {_node(case)} or less if the experts fit; routing limited to few nodes per token bounds it",
    ),
    Caution(
        code="ulysses-across-nodes",
        applies=ulysses_crosses_nodes,
        message=lambda case: f"the all_to_all of ulysses over {case.layout.ulysses} ranks spans {_speeds(case, 'ulysses')}, unhidden",
        remedy=lambda case: f"usp=UxR with tp x U of {_node(case)} or less, or zigzag, whose exchange runs beside the attention",
    ),
    Caution(
        code="few-micro-batches",
        applies=few_micro_batches,
        message=_idle,
        remedy=lambda case: f"m of {_enough(case)} or more: a smaller mb, fewer stages, less dp or a larger batch",
    ),
    Caution(
        code="naive-schedule",
        applies=one_stage_at_a_time,
        message=lambda case: f"naive runs one stage at a time: each rank is idle for {1 - 1 / case.layout.pp:.0%} of the step",
        remedy=lambda case: f"1f1b with {_enough(case)} or more micro-batches",
    ),
    Caution(
        code="sp-off",
        applies=sp_left_off,
        message=lambda case: f"without sp each of the tp = {case.layout.tp} ranks keeps all activations between the tp regions",
        remedy=lambda case: "add sp: the same bytes forward, those activations divided by tp",
    ),
    Caution(
        code="interleaved-slow-fabric",
        applies=interleaving_on_slow_fabric,
        message=lambda case: (
            f"interleaved*{case.layout.virtual_stages} sends {case.layout.virtual_stages} times the messages over {_speeds(case, 'pp')}"
        ),
        remedy=lambda case: "1f1b with more micro-batches",
    ),
    Caution(
        code="zero3-gathers",
        applies=gathers_every_micro_batch,
        message=lambda case: f"zero=3 gathers all parameters twice in each of m = {case.micro_batches} micro-batches",
        remedy=lambda case: "zero=1 or zero=3:keep if they fit, or a larger mb",
    ),
    Caution(
        code="zero2-pp",
        applies=reduces_every_micro_batch,
        message=lambda case: f"zero=2 reduces all gradients in each of m = {case.micro_batches} micro-batches, between pipeline sends",
        remedy=lambda case: "zero=1 reduces once per step; DeepSpeed refuses zero=2 with a pipeline",
    ),
    Caution(
        code="zero-alone",
        applies=nothing_to_shard,
        message=lambda case: f"zero = {case.layout.zero} shards over dp_shard x cp, which is one rank",
        remedy=lambda case: f"dp=1x{case.layout.dp} instead of {case.layout.dp}x1" if case.layout.dp > 1 else "leave zero out",
    ),
    Caution(
        code="kv-copies",
        applies=kv_heads_are_copied,
        message=lambda case: (
            f"tp = {case.layout.tp} exceeds the {case.num_kv_heads} kv heads: "
            f"{case.layout.tp // case.num_kv_heads} ranks hold, compute and cache a copy of each"
        ),
        remedy=lambda case: f"tp of {case.num_kv_heads} or less",
    ),
    Caution(
        code="cp-uneven",
        applies=causal_work_is_uneven,
        message=lambda case: (
            f"with whole chunks in order the last of cp = {case.layout.cp} ranks does "
            f"{(2 * case.layout.cp - 1) / case.layout.cp:.3g} times the average causal attention"
        ),
        remedy=lambda case: f"cp={case.layout.cp}:zigzag gives every rank an early and a late chunk",
    ),
    Caution(
        code="seq-beyond-positions",
        applies=beyond_trained_positions,
        message=lambda case: f"the sequence of {case.workload.seq} exceeds max_positions = {case.model.max_positions} of {case.model.name}",
        remedy=lambda case: "rotary positions go on, quality may not: scale them (rope_scaling) or shorten the sequence",
    ),
    Caution(
        code="vocab-padding",
        applies=vocab_is_wasted,
        message=lambda case: f"the vocabulary of {case.model.vocab_size} is padded to {_padded(case)} rows",
        remedy=lambda case: f"a smaller vocab_pad than {case.layout.vocab_pad}" if case.layout.vocab_pad > 1 else "vocab=off",
    ),
    Caution(
        code="vocab-off",
        applies=vocab_is_whole,
        message=lambda case: f"vocab=off keeps embedding, head and logits whole on each of the tp = {case.layout.tp} ranks",
        remedy=lambda case: "leave vocab on: the loss over V/tp sends a few bytes per token",
    ),
    Caution(
        code="thin-micro-batch",
        applies=micro_batch_is_thin,
        message=lambda case: (
            f"{case.layout.mb * case.sequence // case.layout.cp} tokens per micro-batch and rank are fewer than the "
            f"{_balance(case):.0f} flops that the device does for each byte it reads: GEMMs wait for their weights"
        ),
        remedy=lambda case: "a larger mb, or less cp",
    ),
    Caution(
        code="partial-node",
        applies=node_is_not_full,
        message=lambda case: f"{case.layout.world_size} ranks do not fill nodes of {_node(case)}",
        remedy=lambda case: f"a multiple of {_node(case)} GPUs",
    ),
)
