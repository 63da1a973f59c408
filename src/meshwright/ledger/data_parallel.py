"""What data parallelism and ZeRO send for one unit, each micro-batch and once per step (DESIGN section 4.1).

ZeRO: Rajbhandari et al. (arXiv 1910.02054), stages 1 to 3; FSDP2's hybrid sharding replicates over dp_replicate and shards
over fsdp = dp_shard x cp. The experts of a layer live on the fold: they shard over edp, and replicate likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.arithmetic import Num
from meshwright.ledger import step
from meshwright.ledger.parameters import held_numel, is_expert, local, partial_over_tp, replicated_kv_numel, shard_numel
from meshwright.ledger.rows import Phase, Row
from meshwright.ledger.sizes import Sizes
from meshwright.ledger.writer import Writer
from meshwright.spec import names
from meshwright.spec.parameters import Parameter
from meshwright.units import DTYPE_BYTES


@dataclass(slots=True)
class Part:
    """The dense or the expert parameters of one unit on one rank.

    Attributes:
        numel: elements before ZeRO. shard: elements of one rank's shard, padded; numel without a group to shard over.
        shard_axis, all_axis: the axes of shards, and of shards and replicas together.
    """

    numel: Num
    shard: Num
    ranks: Num
    shard_axis: str
    all_axis: str
    all_ranks: Num


@dataclass(slots=True)
class Unit:
    """One unit: its parts, and what it sends.

    Attributes:
        forward, backward: rows of each micro-batch. step: rows of each step, the optimizer's last. mirror: rows of each step
            under dualpipe, whose ranks hold copies of each other's stages.
        owned: elements that this rank's optimizer moves. partial_numel: elements whose gradient is a summand over tp.
        kv_numel: elements of replicated key and value rows.
    """

    name: str
    parts: tuple[Part, ...]
    partial_numel: Num
    kv_numel: Num
    forward: list[Row]
    backward: list[Row]
    step: list[Row]
    mirror: list[Row]
    owned: Num = 0

    @property
    def numel(self) -> Num:
        return sum(part.numel for part in self.parts)

    @property
    def shard(self) -> Num:
        return sum(part.shard for part in self.parts)

    @property
    def gathered(self) -> Num:
        """Elements of the unit when its shards are gathered, padding included."""
        return sum(part.shard * part.ranks for part in self.parts)


def shard_ranks(layout: Any) -> Num:
    """Ranks over which ZeRO cuts dense state: dp_shard x cp."""
    return layout.dp_shard * layout.cp


def build_unit(name: str, parameters: tuple[Parameter, ...], s: Sizes, is_root: bool = False, shares_table: bool = False) -> Unit:
    """The rows of one unit under the layout's ZeRO stage.

    Args:
        is_root: embedding, final norm and head. shares_table: the other end of the pipeline holds the embedding, too.
    """
    trained = [local(p, s) for p in parameters if p.trained]
    dense = [held for held in trained if not is_expert(held.parameter)]
    experts = [held for held in trained if is_expert(held.parameter)]
    replicas = s.layout.dp_replicate
    n, e = shard_ranks(s.layout), s.layout.edp
    parts = [Part(held_numel(dense), shard_numel(dense, n), n, "fsdp", "dp_cp", n * replicas)]
    if experts:
        parts.append(Part(held_numel(experts), shard_numel(experts, e), e, "edp", "edp_replicate", e * replicas))
    kv = replicated_kv_numel(dense, s)
    zero = s.layout.zero
    whole = partial_over_tp(trained, s)
    partial = shard_numel(whole, n) if zero else held_numel(whole)
    unit = Unit(name, tuple(parts), partial, kv, [], [], [], [])
    unit.owned = unit.shard if zero else unit.numel
    _write(unit, s, is_root)
    if shares_table:
        unit.step += step.tied_embedding(s)
    unit.mirror += step.mirrored_stages(s, unit.owned)
    if any(not p.trained for p in parameters):
        unit.step += step.expert_loads(s, n * replicas)
        unit.mirror += step.mirrored_loads(s)
    unit.step += step.optimizer(s, unit.owned)
    return unit


def _write(unit: Unit, s: Sizes, is_root: bool) -> None:
    """One table: which rows at which time, by ZeRO stage and variant."""
    zero, variant = s.layout.zero, s.layout.zero_variant
    each, once = unit.backward, unit.step
    if zero == 0:
        once += _kv_copies(unit, s) + _tensor_sum(unit, s)
        once += _rows(unit, s, "all_reduce", "all", "reduce", "gradients of all replicas are summed")
    elif zero in (1, 2):
        (each if zero == 2 else once).extend(_kv_copies(unit, s))
        scatter = _rows(unit, s, "reduce_scatter", "shard", "reduce", "each rank keeps the gradient of its shard of the optimizer state")
        (each if zero == 2 else once).extend(scatter)
        once += _tensor_sum(unit, s) + _replicas(unit, s)
        once += _rows(unit, s, "all_gather", "shard", "optimizer", "each rank has updated its shard of the parameters")
    else:
        gather = _rows(unit, s, "all_gather", "shard", "forward", "the parameters of the unit are needed whole")
        scatter = _rows(unit, s, "reduce_scatter", "shard", "reduce", "each rank keeps the gradient of its shard")
        # Without stages the root's backward comes at once; between passes of a pipeline it is freed like every unit.
        again = (
            []
            if is_root and s.layout.pp == 1
            else _rows(unit, s, "all_gather", "shard", "backward_input", "freed after the forward, needed again")
        )
        each += _kv_copies(unit, s)
        if variant == "keep":
            once += gather + scatter
        else:
            unit.forward += gather
            each += again + ([] if variant == "local" else scatter)
            once += scatter if variant == "local" else []
        once += _tensor_sum(unit, s) + _replicas(unit, s)[::-1]  # FSDP2 takes the last of a unit's meshes first: the experts'


def _dtype(s: Sizes, phase: Phase) -> str:
    """Gradients travel in the reductions' dtype, parameters in that of the products (an fp32 master stays where it is)."""
    return s.precision.reduce if phase == "reduce" else s.precision.gathered


def _rows(unit: Unit, s: Sizes, op: str, over: str, phase: Phase, why: str) -> list[Row]:
    """One row per part, over its shards or over all its copies; the payload is the full tensor, padded where it is cut."""
    w = Writer(s)
    dtype = _dtype(s, phase)
    for part in unit.parts:
        axis, ranks = (part.shard_axis, part.ranks) if over == "shard" else (part.all_axis, part.all_ranks)
        if isinstance(ranks, int) and ranks == 1:
            continue
        numel = part.shard * part.ranks if over == "shard" else part.numel
        shard, whole = s.tensor(f"P/{part.shard_axis}", dtype=dtype), s.tensor("P", dtype=dtype)
        before, after = (shard, whole) if op == "all_gather" else (whole, shard if op == "reduce_scatter" else whole)
        w.collective(phase, _module(unit, part), op, axis, ranks, numel * int(DTYPE_BYTES[dtype]), before, after, why=why)
    return w.rows


def _replicas(unit: Unit, s: Sizes) -> list[Row]:
    w = Writer(s)
    dtype = s.precision.reduce
    for part in unit.parts:
        shard = s.tensor(f"P/{part.shard_axis}", dtype=dtype)
        w.collective("reduce", _module(unit, part), "all_reduce", "dp_replicate", s.layout.dp_replicate,
                     part.shard * int(DTYPE_BYTES[dtype]), shard, shard, why="the replicas of a shard sum its gradients")  # fmt: skip
    return w.rows


def _tensor_sum(unit: Unit, s: Sizes) -> list[Row]:
    """Parameters that all tp ranks hold but whose gradients are summands: on the shards under ZeRO, else on the whole."""
    w = Writer(s)
    dtype = s.precision.reduce
    if not isinstance(unit.partial_numel, int) or unit.partial_numel:
        tensor = s.tensor("P/fsdp" if s.layout.zero else "P", dtype=dtype)
        w.collective("reduce", unit.name, "all_reduce", "tp", s.layout.tp, unit.partial_numel * int(DTYPE_BYTES[dtype]), tensor, tensor,
                     why="each tp rank saw other tokens (or heads), so a weight held by all of them has summands")  # fmt: skip
    return w.rows


def _kv_copies(unit: Unit, s: Sizes) -> list[Row]:
    """Under zero=3 inside the backward, in the dtype that it computes in; else out of the accumulated gradients."""
    w = Writer(s)
    dtype = s.precision.gathered if s.layout.zero == 3 else s.precision.reduce
    if not isinstance(unit.kv_numel, int) or unit.kv_numel:
        tensor = s.tensor("P", dtype=dtype)
        w.collective("reduce", f"{unit.name}.{names.QKV}", "all_reduce", "kv", s.kv_copies, unit.kv_numel * int(DTYPE_BYTES[dtype]),
                     tensor, tensor, why="fewer kv heads than tp ranks: the copies of a head sum their gradients")  # fmt: skip
    return w.rows


def _module(unit: Unit, part: Part) -> str:
    return f"{unit.name}.{names.EXPERTS}" if part.shard_axis == "edp" else unit.name
