"""Blocks and units with their seconds and bytes: what memory and step time are computed from.

Prices every row once (compute.py, collectives/price.py) and sums in row order, so that a search over arrays and a single
estimate add the same numbers in the same order. A collective that can run behind compute is counted exposed only as far as
that compute is too short for it; each such rule is said where it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from meshwright.arithmetic import Num, kept, larger, where
from meshwright.boundaries import message_s
from meshwright.collectives.fabric import Fabric, tier_index
from meshwright.compute import Kernels, efficiency
from meshwright.ledger.blocks.layer import Block, Sublayer
from meshwright.ledger.build import Ledger, scalar_rows
from meshwright.ledger.data_parallel import Unit
from meshwright.ledger.rows import Row
from meshwright.ledger.stages import LayerBlock
from meshwright.spec import names
from meshwright.spec.cluster import Cluster
from meshwright.spec.model import LayerKind

PART_OF_AXIS = {"tp": "tp", "kv": "tp", "cp": "cp", "ring": "cp", "ulysses": "cp", "ep": "ep", "etp": "ep", "pp": "pp"}
"""Which part of a step's time an exposed collective counts to; every other axis is data parallel."""


class Numbers:
    """Base of the dataclasses below whose numbers a search joins over many columns (search/join.py)."""


@dataclass
class Cost(Numbers):
    """Seconds of one pass: compute, and what is exposed of each axis. Not changed once it is made, so that its sum is kept."""

    compute_s: Num = 0.0
    tp_s: Num = 0.0
    cp_s: Num = 0.0
    ep_s: Num = 0.0

    @kept
    def total_s(self) -> Num:
        return self.compute_s + self.tp_s + self.cp_s + self.ep_s

    def plus(self, other: Cost, times: int = 1) -> Cost:
        """This and ``times`` the other."""
        if times == 1:
            return Cost(
                self.compute_s + other.compute_s, self.tp_s + other.tp_s, self.cp_s + other.cp_s, self.ep_s + other.ep_s
            )  # fmt: skip
        return Cost(
            self.compute_s + times * other.compute_s, self.tp_s + times * other.tp_s,
            self.cp_s + times * other.cp_s, self.ep_s + times * other.ep_s,
        )  # fmt: skip


@dataclass(slots=True)
class Sums:
    """Seconds of a pass's rows, before what hides behind what: compute (attention cores apart, too), rings, other collectives by axis."""

    compute_s: Num = 0.0
    core_s: Num = 0.0
    ring_s: Num = 0.0
    tp_s: Num = 0.0
    cp_s: Num = 0.0
    ep_s: Num = 0.0

    def plus(self, other: Sums) -> Sums:
        return Sums(
            self.compute_s + other.compute_s, self.core_s + other.core_s, self.ring_s + other.ring_s,
            self.tp_s + other.tp_s, self.cp_s + other.cp_s, self.ep_s + other.ep_s,
        )  # fmt: skip


@dataclass(slots=True)
class SublayerNumbers:
    """One sublayer for one micro-batch: its passes, and the largest pair of an operation's input and output in its backward."""

    forward: Sums
    backward_input: Sums
    backward_weight: Sums
    largest_bytes: Num


@dataclass
class BlockNumbers(Numbers):
    """One block for one micro-batch: seconds by pass, bytes kept, bytes at work while its backward runs; seconds
    that the host needs to launch it."""

    forward: Cost
    recompute: Cost
    backward_input: Cost
    backward_weight: Cost
    saved_bytes: Num
    working_bytes: Num
    host_forward_s: Num = 0.0
    host_backward_s: Num = 0.0

    @property
    def forward_s(self) -> Num:
        return self.forward.total_s

    @kept
    def backward_s(self) -> Num:
        return self.recompute.total_s + self.backward_input.total_s + self.backward_weight.total_s


@dataclass(slots=True)
class UnitNumbers(Numbers):
    """One unit: elements held, of the shard and gathered; seconds of its data-parallel collectives.

    Attributes:
        gather_s: zero=3's gather before the forward. regather_s, scatter_s: of each micro-batch's backward.
        reduce_s: reductions once per step. keep_s, collect_s: parameter gathers once per step, before the first forward
            (zero=3:keep) and after the optimizer (zero=1, 2). tensor_s: sums over tp. copies_s: sums over copies of kv
            heads in each micro-batch. loads_s: sums of expert loads. shared_s: sums of a shared embedding. mirror_s: sums
            over dualpipe's copies. optimizer_s: AdamW.
    """

    numel: Num
    shard: Num
    gathered: Num
    gather_s: Num
    regather_s: Num
    scatter_s: Num
    reduce_s: Num
    keep_s: Num
    collect_s: Num
    tensor_s: Num
    copies_s: Num
    loads_s: Num
    shared_s: Num
    mirror_s: Num
    optimizer_s: Num


class Priced:
    """A ledger on a cluster, priced as it is asked for.

    ``blocks`` and ``units`` are caches that ledgers may share where nothing that they depend on differs: blocks the
    degrees, sp, vocab, cp kind and precision; units also the ZeRO stage.
    """

    def __init__(
        self, ledger: Ledger, cluster: Cluster, fabric: Fabric | None = None, blocks: dict[object, Any] | None = None,
        units: dict[object, Any] | None = None,
    ) -> None:  # fmt: skip
        self.ledger, self.cluster = ledger, cluster
        self._kernels = Kernels(cluster.device, ledger.stack, ledger.precision.compute)
        self.fabric = fabric or Fabric(ledger.layout, cluster, ledger.model.attention.num_kv_heads)
        self.blocks: dict[object, Any] = {} if blocks is None else blocks
        self.units: dict[object, Any] = {} if units is None else units
        self.chunk_times: list[Any] | None = None  # chunk_time.py's, once they are known
        self.stage_ends: dict[int, Any] = {}  # step_time.py's
        self._sublayers: dict[int, tuple[Sublayer, SublayerNumbers]] = {}
        self._repeated: dict[int, tuple[Sublayer, Sums]] = {}
        self._efficiency = efficiency(ledger.stack)
        self._slowdowns: dict[str, Num] = {}

    def _block(self, key: object, make: Callable[[], Block]) -> BlockNumbers:
        found: BlockNumbers | None = self.blocks.get(key)
        if found is None:
            found = self.blocks[key] = self.price_block(make())
        return found

    def _unit(self, key: object, make: Callable[[], Unit]) -> UnitNumbers:
        found: UnitNumbers | None = self.units.get(key)
        if found is None:
            found = self.units[key] = self.price_unit(make())
        return found

    def layer(self, block: LayerBlock) -> BlockNumbers:
        return self._block(block, lambda: self.ledger.layer(block))

    @property
    def boundary_s(self) -> Num:
        """One message over a boundary of the pipeline; where boundaries are not alike (``fabric.hops``), an array with a row for each."""
        if "boundary" not in self.blocks:
            self.blocks["boundary"] = message_s(self)
        return self.blocks["boundary"]

    @property
    def one_link(self) -> Num:
        """1 where a step's reductions go over the link of each micro-batch's gathers and scatters: in the same groups (zero=3:local), or
        in groups of replicas that span the same tier; 0 where they do not."""
        if "one link" not in self.units:
            shards, replicas = self.fabric.group("fsdp"), self.fabric.group("dp_replicate")
            same = tier_index(shards) == tier_index(replicas)
            self.units["one link"] = same * 1 if self.ledger.layout.zero_variant != "local" else 1
        return self.units["one link"]

    @property
    def scalars_s(self) -> Num:
        """Token count and gradient norm."""
        if "scalars" not in self.blocks:
            self.blocks["scalars"] = self._sum(scalar_rows(self.ledger))
        return self.blocks["scalars"]

    @property
    def embedding(self) -> BlockNumbers:
        return self._block("embedding", lambda: self.ledger.embedding)

    @property
    def head(self) -> BlockNumbers:
        return self._block("head", lambda: self.ledger.head)

    @property
    def mtp(self) -> BlockNumbers:
        return self._block("mtp", lambda: self.ledger.mtp)

    def layer_unit(self, kind: LayerKind) -> UnitNumbers:
        return self._unit(kind, lambda: self.ledger.layer_unit(kind))

    def root(self, first: bool, last: bool) -> UnitNumbers:
        return self._unit((first, last), lambda: self.ledger.root(first, last))

    @property
    def mtp_unit(self) -> UnitNumbers:
        return self._unit("mtp", lambda: self.ledger.mtp_unit)

    def row_s(self, row: Row) -> Num:
        """Seconds of one call of a row, exposed or not."""
        if row.op is not None:
            assert row.axis is not None
            if self.ledger.stack.fused_dispatch and _is_dispatch(row):
                assert self.ledger.model.moe is not None
                return self.fabric.fused_s(self.ledger.model.moe, row.axis, row.payload_bytes) * self._slowdown(row.axis)
            return self.call_s(row.op, row.axis, row.payload_bytes)
        return self._kernels.seconds(row)

    def call_s(self, op: str, axis: str, payload_bytes: Num) -> Num:
        """Seconds of one call of ``op`` over ``axis``, exposed or not."""
        return self.fabric.seconds(op, axis, payload_bytes) * self._slowdown(axis)

    def hop_s(self, tier: int, payload_bytes: Num) -> Num:
        """Seconds of a message between two stages that meet in a tier."""
        return self.fabric.hop_s(tier, payload_bytes) * self._slowdown("pp")

    @property
    def contention(self) -> float:
        """What a second of hidden data-parallel traffic adds to the compute that hides it."""
        return self._efficiency.contention

    @property
    def exposed_share_of_tp(self) -> float:
        """What the stack does not hide of tensor parallelism's collectives."""
        return self._efficiency.async_tp if self.ledger.stack.hides_tensor_parallel else 1.0

    def _slowdown(self, axis: str) -> Num:
        """What a collective of a training step takes over nccl-tests of the same size, which have the machine for themselves."""
        found: Num = self._slowdowns.get(axis)
        if found is None:
            part, own, level = PART_OF_AXIS.get(axis), self._efficiency, self.ledger.stack.level
            if part is None:
                group = self.fabric.group(axis)
                found = where(group.ranks > group.members[0], own.dp_across * level, own.dp_inside * level)
            else:
                found = getattr(own, part) * level
            self._slowdowns[axis] = found
        return found

    def price_block(self, block: Block) -> BlockNumbers:
        """Seconds by pass: those of the sublayers, which blocks may share, with what hides behind what."""
        forward, again, backward_input, backward_weight = Sums(), Sums(), Sums(), Sums()
        largest: Num = 0
        for part in block.sublayers:
            numbers = self._sublayer(part)
            forward = forward.plus(numbers.forward)
            backward_input = backward_input.plus(numbers.backward_input)
            backward_weight = backward_weight.plus(numbers.backward_weight)
            largest = larger(largest, numbers.largest_bytes)
            if block.repeats:
                again = again.plus(numbers.forward if part.again is part.forward else self._again(part))
        if block.again:
            again = self._price_rows(block.again)
        return BlockNumbers(
            self._exposed(forward), self._exposed(again), self._exposed(backward_input), self._exposed(backward_weight),
            block.saved_bytes, block.working_bytes + largest, *self._host_s(block),
        )  # fmt: skip

    def _sublayer(self, part: Sublayer) -> SublayerNumbers:
        if id(part) not in self._sublayers:
            backward: dict[str, list[Row]] = {"backward_input": [], "backward_weight": []}
            for row in part.backward:
                backward[row.phase].append(row)
            self._sublayers[id(part)] = part, SublayerNumbers(
                self._price_rows(part.forward), self._price_rows(backward["backward_input"]),
                self._price_rows(backward["backward_weight"]), self._largest_bytes(part.backward),
            )  # fmt: skip
        return self._sublayers[id(part)][1]

    def _again(self, part: Sublayer) -> Sums:
        """What full recomputation repeats of a sublayer."""
        if id(part) not in self._repeated:
            self._repeated[id(part)] = part, self._price_rows(part.again)
        return self._repeated[id(part)][1]

    def _host_s(self, block: Block) -> tuple[Num, Num]:
        """What the host needs to launch a layer's forward, and its backward: a third of its kernels in the forward, as many again in a
        recomputation, two thirds in the backward. None of it where nothing but a graph is launched."""
        stack = self.ledger.stack
        if block.least is None or stack.graphs or (block.least == "moe" and stack.static_routing):
            return 0.0, 0.0
        own = self._efficiency
        third = (own.host_moe_s if block.least == "moe" else own.host_layer_s) * (stack.level / 3)
        return third, third * (3 if block.repeats or block.again else 2)

    def _price_rows(self, rows: list[Row]) -> Sums:
        sums = Sums()
        hides_ring = self.ledger.stack.hides_context_parallel
        kernel_s = self._kernels.seconds
        for row in rows:
            if row.op is None:
                seconds = kernel_s(row)
                sums.compute_s = sums.compute_s + seconds
                if row.kind == "attention":
                    sums.core_s = sums.core_s + seconds
                continue
            seconds = row.times * self.row_s(row)
            part = PART_OF_AXIS[row.axis or ""]
            if row.hidden_by and hides_ring:
                sums.ring_s = sums.ring_s + seconds
            elif part == "tp":
                sums.tp_s = sums.tp_s + seconds
            elif part == "cp":
                sums.cp_s = sums.cp_s + seconds
            else:
                sums.ep_s = sums.ep_s + seconds
        return sums

    def _exposed(self, sums: Sums) -> Cost:
        """Ring exchanges hide behind the attention of the ring's other steps where the stack does that, experts' behind compute."""
        ring = self.ledger.layout.cp // self.ledger.layout.ulysses
        cp_s = sums.cp_s + larger(sums.ring_s - sums.core_s * (ring - 1) / ring, 0.0)
        ep_s = larger(sums.ep_s - sums.compute_s, 0.0) if self.ledger.stack.hides_expert_parallel else sums.ep_s
        return Cost(sums.compute_s, sums.tp_s * self.exposed_share_of_tp, cp_s, ep_s)

    def _largest_bytes(self, rows: list[Row]) -> Num:
        """The largest pair of an operation's input and output.

        A column has rows for groups of one, which a single layout leaves out: they count nothing.
        """
        size_of = self.ledger.sizes.bytes
        largest: Num = 0
        for row in rows:
            size: Num = 0
            for tensor in (row.before, row.after):
                if tensor is not None:
                    size = size + size_of(tensor)
            if row.op is not None:
                size = size * (row.ranks > 1)
            largest = larger(largest, size)
        return largest

    def price_unit(self, unit: Unit) -> UnitNumbers:
        """Seconds of the unit's rows by the moment at which they run."""
        moments: dict[str, list[Row]] = {moment: [] for moment in UNIT_MOMENTS}
        moments["gather_s"] = unit.forward
        moments["mirror_s"] = unit.mirror
        for row in unit.backward:
            moment = "regather_s" if row.op == "all_gather" else "copies_s" if row.axis == "kv" else "scatter_s"
            moments[moment].append(row)
        for row in unit.step:
            moments[_step_moment(row)].append(row)
        return UnitNumbers(unit.numel, unit.shard, unit.gathered, *(self._sum(rows) for rows in moments.values()))

    def _sum(self, rows: list[Row]) -> Num:
        seconds: Num = 0.0
        for row in rows:
            seconds = seconds + row.times * self.row_s(row)
        return seconds


UNIT_MOMENTS = tuple(field.name for field in fields(UnitNumbers) if field.name.endswith("_s"))


def _step_moment(row: Row) -> str:
    """When a row of a unit that runs once per step does so."""
    if row.op is None:
        return "optimizer_s"
    if row.op == "all_gather":
        return "keep_s" if row.phase == "forward" else "collect_s"
    if row.name == names.ROUTER:
        return "loads_s"
    return {"tp": "tensor_s", "kv": "tensor_s", "embedding": "shared_s"}.get(row.axis or "", "reduce_s")


def _is_dispatch(row: Row) -> bool:
    """Whether a row moves token copies to experts or back, rather than their counts."""
    moves = row.name in (names.DISPATCH, names.COMBINE) and row.op == "all_to_all"
    return moves and row.before is not None and row.before.dtype != "int64"
