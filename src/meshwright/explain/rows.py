"""The rows of one rank and step: what it computes and sends, with local shapes, bytes, seconds and the reason.

Everything is read off the ledger (listing.py) and priced by ``Priced.row_s``; nothing is computed here but the rank's own
share of causal attention where contiguous chunks make the ranks of a ring differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from meshwright.boundaries import alike
from meshwright.errors import InputError, Mistake
from meshwright.explain.listing import Listed, StageListing
from meshwright.explain.shown import Shown
from meshwright.explain.words import in_runs
from meshwright.ledger.blocks.attention_core import score_pairs
from meshwright.ledger.build import Ledger
from meshwright.ledger.rows import Row
from meshwright.ledger.sizes import Sizes
from meshwright.mesh import Mesh, strides
from meshwright.notation import Sharded
from meshwright.priced import Priced
from meshwright.spec.layout import Layout
from meshwright.spec.names import PHASES
from meshwright.units import DTYPE_BYTES

JSON_KEYS = (
    "phase", "layer", "name", "before", "after", "op", "axis", "tier", "payload_bytes", "wire_bytes", "flops", "times", "each_s", "why",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExplainedRow:
    """One row as one rank has it.

    Attributes:
        number: its place in the listing, from 1; it does not depend on the phase that is looked at.
        part, layers: the part of the model that it belongs to (listing.py), and the layers that share it.
        before, after: the tensor's sharding, without axes of one rank; None where there is no tensor.
        before_shape, after_shape: local shapes of it.
        op, axis, tier, ranks: the collective, its axis, the network tier that it spans, its group's size; None for compute.
        payload_bytes, wire_bytes, flops, each_s: of one call. times: calls per step.
        row: the ledger's row.
    """

    number: int
    phase: str
    part: str
    layers: tuple[int, ...]
    name: str
    before: str | None
    after: str | None
    before_shape: tuple[int, ...] | None
    after_shape: tuple[int, ...] | None
    op: str | None
    axis: str | None
    tier: str | None
    ranks: int
    payload_bytes: int
    wire_bytes: int
    flops: float
    times: int
    each_s: float
    why: str
    row: Row

    @property
    def layer(self) -> int | str | None:
        """Model index of the layer, a text such as "0-79" for several that are alike, "mtp", or None outside of layers."""
        if self.part == "mtp":
            return "mtp"
        return self.layers[0] if len(self.layers) == 1 else in_runs(self.layers) or None

    def as_json(self) -> dict[str, object]:
        """The keys that docs/reference/json.md lists."""
        return {key: getattr(self, key) for key in JSON_KEYS}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one rank does in one step, or in one of its layers.

    Attributes:
        rank: the rank that was asked for, or the first that has the layer. coordinates: its place on each mesh axis.
        stage: its pipeline stage. layers: model indices of the layers that it holds.
        rows: those of the phase that was asked for.
    """

    layout: Layout
    rank: int
    coordinates: dict[str, int]
    stage: int
    layers: tuple[int, ...]
    micro_batches: int
    rows: tuple[ExplainedRow, ...]
    warnings: tuple[Any, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {"rows": [row.as_json() for row in self.rows]}


def explain_rows(
    numbers: Priced, rank: int | None = None, layer: int | None = None, phase: str | None = None, row: int | None = None,
    warnings: Sequence[Any] = (),
) -> Explanation:  # fmt: skip
    """The rows of ``rank``; of one layer, one phase, or one row by its number, where they are given.

    Raises:
        InputError: no such rank, layer, phase or row; a layer that another stage has, with the ranks of that stage.
    """
    ledger = numbers.ledger
    rank = _checked_rank(numbers, rank, layer, phase)
    mesh = Mesh(ledger.layout)
    coordinates = mesh.coordinates(rank)
    stage = coordinates["pp"]
    listing = StageListing(ledger, stage, layer)
    view = _View(numbers, mesh.place(rank, "ring"), stage)
    found = [view.explained(number, listed) for number, listed in enumerate(listing.rows, 1)]
    if row is not None and not 1 <= row <= len(found):
        raise InputError([Mistake("command line", "--row", row, f"1 to {len(found)}", problem="is no row of this listing")])
    chosen = [one for one in found if phase in (None, one.phase) and row in (None, one.number)]
    held = sorted(index for _, layers in StageListing(ledger, stage).layers for index in layers)
    return Explanation(
        ledger.layout, rank, coordinates, stage, tuple(held), listing.micro_batches, tuple(chosen), tuple(warnings),
    )  # fmt: skip


def _checked_rank(numbers: Priced, rank: int | None, layer: int | None, phase: str | None) -> int:
    """The rank to look at: the one asked for, or the lowest that has the layer."""
    ledger, mistakes = numbers.ledger, []
    world, num_layers = ledger.layout.world_size, ledger.model.num_layers
    if phase is not None and phase not in PHASES:
        mistakes.append(Mistake("command line", "--phase", phase, " ".join(PHASES)))
    if rank is not None and not 0 <= rank < world:
        mistakes.append(Mistake("command line", "--rank", rank, f"0 to {world - 1}", problem=f"is not one of {world} ranks"))
    if layer is not None and not 0 <= layer < num_layers:
        problem = f"is not one of the {num_layers} layers of {ledger.model.name}"
        mistakes.append(Mistake("command line", "--layer", layer, f"0 to {num_layers - 1}", problem=problem))
    if mistakes:
        raise InputError(mistakes)
    if layer is None:
        return rank or 0
    holders = stages_of_layer(numbers, layer)
    if rank is None:
        return int(holders[0] * strides(ledger.layout)["pp"])
    if (stage := Mesh(ledger.layout).coordinates(rank)["pp"]) not in holders:
        held = sorted(index for _, layers in StageListing(ledger, stage).layers for index in layers)
        where = " and ".join(f"stage {holder}, ranks {in_runs(ranks_of_stage(ledger.layout, holder))}" for holder in holders)
        hint = f"layer {layer} is on {where}; leave --rank out to take the first"
        legal = f"{in_runs(held)} on rank {rank} (stage {stage})" if held else f"none: rank {rank} (stage {stage}) holds no layers"
        raise InputError([Mistake("command line", "--layer", layer, legal, hint, f"is not on rank {rank}")])
    return rank


def stages_of_layer(numbers: Priced, layer: int) -> list[int]:
    """The stages that hold a layer: one, or two with dualpipe."""
    pipeline = numbers.ledger.pipeline
    chunks = [chunk.index for chunk in pipeline.chunks if chunk.first_layer <= layer < chunk.first_layer + chunk.num_layers]
    return [stage for stage, held in enumerate(pipeline.stages) if set(chunks) & set(held)]


def ranks_of_stage(layout: Layout, stage: int) -> list[int]:
    """All ranks with this place on the pipeline, ascending."""
    stride = strides(layout)["pp"]
    return [rank for rank in range(layout.world_size) if rank // stride % layout.pp == stage]


class _View:
    """Turns listed rows into explained ones, for a rank at ``place`` of its ring, in a stage of the pipeline."""

    def __init__(self, numbers: Priced, place: int, stage: int) -> None:
        self.numbers, self.place, self.stage = numbers, place, stage
        self.shown = Shown(numbers.ledger.layout, numbers.ledger.model)

    def explained(self, number: int, listed: Listed) -> ExplainedRow:
        row, s = self._own(listed), self.numbers.ledger.sizes
        op, axis = row.op, row.axis
        tier, each_s = self._tier_and_time(row)
        return ExplainedRow(
            number=number, phase=row.phase, part=listed.part, layers=listed.layers, name=_name(listed),
            before=self.shown.tensor(row.before) if row.before else None,
            after=self.shown.tensor(row.after) if row.after else None,
            before_shape=local_shape(row, row.before, s), after_shape=local_shape(row, row.after, s),
            op=op, axis=self.shown.axis(axis) if op and axis else None, tier=tier,
            ranks=int(row.ranks), payload_bytes=int(row.payload_bytes), wire_bytes=round(row.wire_bytes), flops=float(row.flops),
            times=listed.calls, each_s=each_s, why=row.why, row=row,
        )  # fmt: skip

    def _tier_and_time(self, row: Row) -> tuple[str | None, float]:
        """The outermost tier that a collective crosses and the seconds of one call; the mean of a stage's messages where it sends over
        boundaries that are not alike."""
        numbers, fabric = self.numbers, self.numbers.fabric
        if row.op is None or row.axis is None:
            return None, float(numbers.row_s(row))
        if row.axis != "pp" or alike(numbers):
            return fabric.tier(row.axis), float(numbers.row_s(row))
        hops = numbers.ledger.pipeline.hops_of(self.stage)[(row.op == "send") != (row.phase == "forward")]
        widest = numbers.cluster.tiers[max(int(fabric.hops[hop]) for hop in hops)].name
        return widest, fmean(float(numbers.boundary_s[hop]) for hop in hops) if row.op == "send" else 0.0

    def _own(self, listed: Listed) -> Row:
        """The row with this rank's share of causal attention, where contiguous chunks give the ranks of a ring different
        shares; the ledger has the average, and waits for the busiest."""
        row, ledger = listed.row, self.numbers.ledger
        if row.kind != "attention" or not ranks_differ(ledger):
            return row
        window = window_of(ledger, listed.part, listed.layers)
        average = score_pairs(ledger.workload.seq, window) / ledger.layout.cp
        return replace(row, flops=row.flops * (attended_pairs(ledger, self.place, window) / average), imbalance=1.0)


def ranks_differ(ledger: Ledger) -> bool:
    """Whether the ranks of a context group have different shares of attention: contiguous chunks under a causal kernel."""
    return bool(ledger.layout.cp_kind == "ring" and ledger.layout.cp > 1 and ledger.stack.attention_kernel != "none")


def window_of(ledger: Ledger, part: str, layers: tuple[int, ...]) -> int | None:
    """The attention window of the layers that a row stands for."""
    return ledger.mtp_layer.kind.window if part == "mtp" else ledger.model.layers[layers[0]].window


def attended_pairs(ledger: Ledger, place: int, window: int | None) -> float:
    """(query, key) pairs of one sequence that the rank at ``place`` of its ring computes. Those of the queries before b less
    those of the queries before a are those of the queries from a to b."""
    seq, local = ledger.workload.seq, int(ledger.sizes.seq_local)
    if ranks_differ(ledger):
        return float(score_pairs((place + 1) * local, window) - score_pairs(place * local, window))
    causal = ledger.stack.attention_kernel != "none"
    return float(score_pairs(seq, window, causal) * ledger.layout.ulysses / ledger.layout.cp)


def local_shape(row: Row, tensor: Sharded | None, s: Sizes) -> tuple[int, ...] | None:
    """What one rank holds of the row's tensor; None where the row does not say (the optimizer's flat parameters)."""
    if tensor is None:
        return None
    if any(dim.letter == "P" for dim in tensor.dims):
        numel = row.payload_bytes // int(DTYPE_BYTES[tensor.dtype])
        sharded = bool(tensor.dims[0].axes) and row.op in ("all_gather", "reduce_scatter")
        return (int(numel // row.ranks if sharded else numel),) if row.op else None
    return tuple(int(size) for size in s.local_shape(tensor))


def _name(listed: Listed) -> str:
    """The module inside its layer; a unit's own collectives are for all of its parameters."""
    name = listed.row.name
    for prefix in ("layers", "mtp"):
        if name == prefix:
            return "parameters"
        if name.startswith(f"{prefix}.") and listed.part in ("layers", "mtp") and prefix != "mtp":
            return name.removeprefix(f"{prefix}.")
    return "embedding+head" if name == "root" else name
