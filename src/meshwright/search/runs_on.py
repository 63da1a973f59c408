"""Which frameworks can express a layout: a table of what each one's parallelism cannot do, with the source of each line.

It says that the framework can be configured to cut the model this way, not that it ships the model. ``meshwright`` is this
project's own runtime, which runs what the rules (spec/rules/) accept: it has no line here.

Conditions take one layout or arrays of degrees, like the rules. Sources were read at these commits of August 2026:
Megatron-LM d98e8a64, torchtitan b5bcd76c, DeepSpeed edaa7221; PyTorch is 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from meshwright.spec.layout import DEFAULT_ORDER, SCHEDULES, TWO_CHUNK_SCHEDULES, Layout
from meshwright.spec.model import Model
from meshwright.spec.rules.rule import Bools, implies, kv_heads

FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "fsdp", "meshwright")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One thing that a framework cannot do.

    Attributes:
        framework: one of FRAMEWORKS. key: the key of the layout it limits.
        allows: false where the layout needs what is not there.
        legal: what it can do, in words. source: where that is written.
    """

    framework: str
    key: str
    allows: Callable[[Layout, Model], Bools]
    legal: str
    source: str


def runs_on(layout: Layout, model: Model) -> tuple[str, ...]:
    """The frameworks that can express a legal layout, in the order of FRAMEWORKS."""
    return tuple(framework for framework in FRAMEWORKS if expressible(framework, layout, model))


def expressible(framework: str, layout: Layout, model: Model) -> Bools:
    """Whether ``framework`` can express the layout; a mask where the layout's degrees are arrays."""
    mask: Bools = True
    for limit in limits(framework):
        mask = mask & limit.allows(layout, model)
        if not _any(mask):
            return False
    return mask


def _any(mask: Bools) -> bool:
    return mask if isinstance(mask, bool) else bool(mask.any())


def runnable(layout: Layout, model: Model) -> Bools:
    """Whether any framework can express the layout. Pipelines count as far as a framework for training at scale has them: this project's
    own executor carries out every schedule, but for proofs."""
    mask: Bools = False
    for framework in FRAMEWORKS:
        own = framework == "meshwright"
        mask = mask | (expressible(framework, layout, model) & ((layout.pp == 1) if own else True))
    return mask


def runnable_schedules(model: Model) -> frozenset[str]:
    """The pipeline schedules that some framework for training at scale has."""
    found = set()
    for schedule in SCHEDULES:
        v = 2 if schedule in ("interleaved", *TWO_CHUNK_SCHEDULES) else 1
        if runnable(Layout(pp=2, schedule=schedule, virtual_stages=v), model):
            found.add(schedule)
    return frozenset(found)


def obstacles(framework: str, layout: Layout, model: Model) -> tuple[Limit, ...]:
    """What keeps ``framework`` from expressing this layout, for messages."""
    return tuple(limit for limit in limits(framework) if not limit.allows(layout, model))


@cache
def limits(framework: str) -> tuple[Limit, ...]:
    """The lines of the table about one framework."""
    return tuple(limit for limit in LIMITS if limit.framework == framework)


def _cp_kind(*kinds: str) -> Callable[[Layout, Model], Bools]:
    return lambda layout, model: implies(layout.cp > 1, layout.cp_kind in kinds)


def _schedule(*schedules: str) -> Callable[[Layout, Model], Bools]:
    return lambda layout, model: implies(layout.pp > 1, layout.schedule in schedules)


def _order(*orders: str) -> Callable[[Layout, Model], Bools]:
    return lambda layout, model: layout.order in orders


def _sharded(layout: Layout) -> Bools:
    """Whether zero has more than one rank to shard over."""
    return layout.dp_shard * layout.cp > 1


def _vocab_with_tp(layout: Layout, model: Model) -> Bools:
    return implies(layout.tp > 1, layout.vocab)


def _megatron_fsdp(layout: Layout, model: Model) -> Bools:
    """zero=2 and 3 are Megatron-FSDP, which is documented with tp, cp and ep but not with pipelines, and gathers for every micro-batch."""
    return implies(_sharded(layout), (layout.zero < 2) | ((layout.pp == 1) & (layout.zero_variant == "")))


def _megatron_outer_dp(layout: Layout, model: Model) -> Bools:
    """With dp outermost its experts' pp groups must be those of the dense part: experts fill exactly tp x cp."""
    outer = (layout.order == "tp-cp-ep-pp-dp") & (layout.pp > 1) & (model.moe is not None)
    return implies(outer, layout.ep * layout.etp == layout.tp * layout.cp)


def _torchtitan_zero(layout: Layout, model: Model) -> Bools:
    """Without shards it replicates (DDP); with shards it is FSDP2, whose pipeline stages keep the gathered parameters and reduce once."""
    fully = (layout.zero == 3) & (((layout.pp == 1) & (layout.zero_variant == "")) | ((layout.pp > 1) & (layout.zero_variant == "keep")))
    return implies(_sharded(layout), fully)


def _deepspeed_replicas(layout: Layout, model: Model) -> Bools:
    """Shards inside replicas are MiCS, a variant of ZeRO-3, which expert parallelism excludes."""
    hybrid = (layout.dp_replicate > 1) & _sharded(layout) & (layout.zero > 0)
    return implies(hybrid, (layout.zero == 3) & (layout.ep == 1))


LIMITS = (
    Limit(
        framework="megatron", key="cp", allows=_cp_kind("zigzag", "allgather", "ulysses", "usp"),
        legal="zigzag (p2p), allgather (all_gather), ulysses (a2a), usp (a2a+p2p)",
        source="--cp-comm-type and --hierarchical-context-parallel-sizes, transformer_config.py",
    ),
    Limit(
        framework="megatron", key="pp", allows=_schedule("1f1b", "interleaved"), legal="1f1b interleaved",
        source="megatron/core/pipeline_parallel/schedules.py, get_forward_backward_func",
    ),
    Limit(
        framework="megatron", key="vocab", allows=_vocab_with_tp, legal="on with tp",
        source="VocabParallelEmbedding, megatron/core/tensor_parallel/layers.py",
    ),
    Limit(
        framework="megatron", key="zero", allows=_megatron_fsdp, legal="0 1; 2 3 without pp, gathering for each micro-batch",
        source="--use-distributed-optimizer; --use-megatron-fsdp, docs/user-guide/features/megatron_fsdp.md and parallelism-guide.md",
    ),
    Limit(
        framework="megatron", key="order", allows=_order("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
        legal="tp-cp-ep-dp-pp, or tp-cp-ep-pp-dp with --use-tp-pp-dp-mapping", source="megatron/training/initialize.py",
    ),
    Limit(
        framework="megatron", key="order", allows=_megatron_outer_dp, legal="dp outermost only where ep x etp = tp x cp",
        source="initialize_model_parallel, megatron/core/parallel_state.py",
    ),
    Limit(
        framework="torchtitan", key="tp", allows=lambda layout, model: kv_heads(model) % layout.tp == 0,
        legal="divisors of the kv heads", source="torchtitan/models/common/decoder.py, update_from_config",
    ),
    Limit(
        framework="torchtitan", key="vocab", allows=_vocab_with_tp, legal="on with tp",
        source="torchtitan/models/common/decoder_sharding.py, lm_head and tok_embeddings",
    ),
    Limit(
        framework="torchtitan", key="vocab_pad", allows=lambda layout, model: layout.vocab_pad == 1, legal="1",
        source="rows are cut unevenly, never padded to a multiple: torchtitan/models/common/embedding.py",
    ),
    Limit(
        framework="torchtitan", key="cp", allows=_cp_kind("allgather"), legal="allgather",
        source="FlexAttention with a head-tail balancer: torchtitan/models/common/decoder.py, decoder_sharding.py",
    ),
    Limit(
        framework="torchtitan", key="pp", allows=_schedule("gpipe", "1f1b", "interleaved", "zb-v", "dualpipe-v"),
        legal="gpipe 1f1b interleaved zb-v dualpipe-v", source="get_schedule_class, torch/distributed/pipelining/schedules.py",
    ),
    Limit(
        framework="torchtitan", key="pp", allows=lambda layout, model: (layout.pp == 1) | (not model.tied_embeddings),
        legal="1 with tied embeddings", source="torchtitan/models/common/decoder.py, update_from_config",
    ),
    Limit(
        framework="torchtitan", key="etp", allows=lambda layout, model: (model.moe is None) | (layout.etp == 1), legal="1",
        source="dp_shard x cp x tp = efsdp x ep: torchtitan/distributed/parallel_dims.py",
    ),
    Limit(
        framework="torchtitan", key="zero", allows=_torchtitan_zero, legal="3 without pp, 3:keep with pp, 0 where nothing is sharded",
        source="docs/fsdp.md; torch/distributed/pipelining/stage.py turns resharding and reduction off until the last micro-batch",
    ),
    Limit(
        framework="torchtitan", key="recompute",
        allows=lambda layout, model: layout.recompute in ("none", "full") and layout.recompute_layers is None, legal="none full",
        source="torchtitan/distributed/activation_checkpoint.py; its SelectiveAC saves attention's output and recomputes cheap ops",
    ),
    Limit(
        framework="torchtitan", key="order", allows=_order(DEFAULT_ORDER), legal=DEFAULT_ORDER,
        source="torchtitan/distributed/parallel_dims.py, build_mesh",
    ),
    Limit(
        framework="deepspeed", key="sp", allows=lambda layout, model: layout.sp == 0, legal="off",
        source="AutoTP (tensor_parallel.autotp_size) keeps activations whole: docs/_tutorials/autotp-training.md",
    ),
    Limit(
        framework="deepspeed", key="tp", allows=lambda layout, model: kv_heads(model) % layout.tp == 0,
        legal="divisors of the kv heads", source="further ranks get no heads: docs/_tutorials/autotp-training.md, limitations",
    ),
    Limit(
        framework="deepspeed", key="cp", allows=_cp_kind("ulysses"), legal="ulysses",
        source="sequence_parallel_size, docs/_tutorials/ulysses-alst-sequence-parallelism.md",
    ),
    Limit(
        framework="deepspeed", key="cp", allows=lambda layout, model: implies(layout.cp > 1, (layout.tp == 1) & (layout.pp == 1)),
        legal="without tp and pp", source="docs/_tutorials/ulysses-alst-sequence-parallelism.md: with data parallelism and ZeRO only",
    ),
    Limit(
        framework="deepspeed", key="pp", allows=_schedule("1f1b"), legal="1f1b", source="TrainSchedule, deepspeed/runtime/pipe/schedule.py",
    ),
    Limit(
        framework="deepspeed", key="zero", allows=lambda layout, model: implies(layout.pp > 1, (layout.zero < 2) | (_sharded(layout) == 0)),
        legal="0 1 with pp", source="PipelineEngine.__init__, deepspeed/runtime/pipe/engine.py",
    ),
    Limit(
        framework="deepspeed", key="zero", allows=lambda layout, model: layout.zero_variant == "", legal="0 1 2 3",
        source="no_sync is refused from stage 2 on: deepspeed/runtime/engine.py",
    ),
    Limit(
        framework="deepspeed", key="dp", allows=_deepspeed_replicas, legal="1xS, or RxS with zero=3 (MiCS) and ep=1",
        source="mics_shard_size; docs/_pages/config-json.md, AutoEP constraints",
    ),
    Limit(
        framework="deepspeed", key="stages", allows=lambda layout, model: layout.stages is None, legal="even",
        source="partition_method of PipelineModule balances by itself: docs/_tutorials/pipeline.md",
    ),
    Limit(
        framework="deepspeed", key="ep",
        allows=lambda layout, model: implies(layout.ep > 1, (layout.tp == 1) & (layout.etp == 1) & (layout.pp == 1)),
        legal="without tp and pp", source="AutoEP: docs/_pages/config-json.md, expert_parallel constraints",
    ),
    Limit(
        framework="deepspeed", key="ep", allows=lambda layout, model: implies((layout.ep > 1) & (layout.cp > 1), layout.zero < 3),
        legal="with cp only below zero=3", source="AutoEP with ZeRO stage 3: docs/_pages/config-json.md",
    ),
    Limit(
        framework="deepspeed", key="recompute",
        allows=lambda layout, model: layout.recompute in ("none", "full") and layout.recompute_layers is None, legal="none full",
        source="activation_checkpointing and activation_checkpoint_interval: docs/_pages/config-json.md",
    ),
    Limit(
        framework="deepspeed", key="order", allows=_order(DEFAULT_ORDER), legal=DEFAULT_ORDER,
        source="axes pipe, data, model from the outside: PipeModelDataParallelTopology, deepspeed/runtime/pipe/topology.py",
    ),
    Limit(
        framework="fsdp", key="tp",
        allows=lambda layout, model: layout.tp * layout.cp * layout.pp * layout.ep * layout.etp == 1,
        legal="dp only: tp, cp, pp and ep are 1", source="fully_shard cuts parameters and nothing else: torch.distributed.fsdp",
    ),
    Limit(
        framework="fsdp", key="zero", allows=lambda layout, model: implies(_sharded(layout), (layout.zero == 0) | (layout.zero == 3)),
        legal="0 (replicate) 3 3:local 3:keep",
        source="fully_shard's reshard_after_forward, set_requires_gradient_sync, set_reshard_after_backward: torch.distributed.fsdp",
    ),
    Limit(
        framework="fsdp", key="vocab_pad", allows=lambda layout, model: layout.vocab_pad == 1, legal="1",
        source="the model's own vocabulary is kept",
    ),
)  # fmt: skip
"""The table. A layout that a line does not allow, its framework cannot express."""
