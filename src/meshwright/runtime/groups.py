"""Process groups of a layout's mesh axes, under names that are the same in every run: ``tp.3`` is the fourth tp group.

Each axis has its own group, also where two axes span the same ranks, so that a recording says which axis a collective
was for. An axis of one rank has none, and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from meshwright.mesh import Mesh
from meshwright.recording.events import Group
from meshwright.spec.layout import Layout

TRAINING_AXES = (
    "tp", "cp", "ring", "ulysses", "kv", "dp_shard", "dp_replicate", "fsdp", "dp_cp", "dp_cp_tp", "ep", "etp", "edp", "edp_replicate",
    "pp", "world",
)  # fmt: skip
"""Every axis that a training step may send over (DESIGN section 4.1); names of meshwright.mesh."""

PIPELINE_AXES = ("embedding", "mirror")
"""Two more of pipelines: the first and last stage, which share a tied table; stages i and p-1-i of DualPipe."""


def axes_of(layout: Layout) -> tuple[str, ...]:
    """The axes that a training step of this layout may send over."""
    return TRAINING_AXES + (PIPELINE_AXES if layout.pp > 1 else ())


@dataclass(frozen=True, slots=True)
class Axis:
    """This rank's group on one mesh axis.

    Attributes:
        name: of the group (``tp.3``). axis: of the mesh.
        ranks: global ranks of the group, in order. place: this rank's index among them.
        group: None where the axis has one rank only.
    """

    name: str
    axis: str
    ranks: tuple[int, ...]
    place: int
    group: ProcessGroup | None

    @property
    def size(self) -> int:
        return len(self.ranks)


def alone(axis: str, rank: int = 0) -> Axis:
    """An axis of one rank."""
    return Axis(f"{axis}.{rank}", axis, (rank,), 0, None)


class ProcessGroups:
    """All groups of one rank."""

    def __init__(self, axes: Iterable[Axis]) -> None:
        self._axes: Mapping[str, Axis] = {axis.axis: axis for axis in axes}

    def __getitem__(self, axis: str) -> Axis:
        return self._axes[axis]

    def recorded(self) -> dict[str, Group]:
        """For the recorder: torch's name of each process group -> the group as recordings call it."""
        found: dict[str, Group] = {}
        for axis in self._axes.values():
            if axis.group is not None:
                found[axis.group.group_name] = Group(name=axis.name, axis=axis.axis, ranks=axis.ranks)
        return found

    def device_mesh(self, shard: str, replicate: str | None = None, device_type: str = "cpu") -> DeviceMesh:
        """A mesh for FSDP2 over the groups that are there already: [shard], or [replicate, shard] for hybrid sharding.

        FSDP2 wants a group also for an axis of one rank, over which it sends nothing; only there one is made.
        """
        inner = self[shard]
        inner_group = inner.group or dist.new_group(list(inner.ranks), use_local_synchronization=True)
        outer = self[replicate] if replicate else None
        if outer is None or outer.group is None:
            return DeviceMesh.from_group(inner_group, device_type, mesh_dim_names=(shard,))
        # The ranks at (i, j): the place i on the outer axis and j on the inner one; both are linear in the rank.
        shift = [rank - outer.ranks[outer.place] for rank in outer.ranks]
        ranks = torch.tensor([[rank + step for rank in inner.ranks] for step in shift])
        return DeviceMesh.from_group([outer.group, inner_group], device_type, mesh=ranks, mesh_dim_names=(outer.axis, shard))


def make_groups(mesh: Mesh, rank: int, timeout_s: float, axes: Sequence[str] = TRAINING_AXES) -> ProcessGroups:
    """Make this rank's groups; every rank must call it, with the same axes, after ``init_process_group``.

    axes may be of TRAINING_AXES and PIPELINE_AXES. Each group gets ``timeout_s``: torch's default is half an hour whatever
    the world's limit is.
    """
    return ProcessGroups([_make_axis(mesh, rank, axis, timedelta(seconds=timeout_s)) for axis in axes])


def _make_axis(mesh: Mesh, rank: int, axis: str, timeout: timedelta) -> Axis:
    number, ranks = _group_of(mesh, rank, axis)
    name = f"{axis}.{number}"
    if len(ranks) == 1:
        return Axis(name, axis, ranks, 0, None)
    # Only the members meet: no rank waits for groups that it is not in.
    group = dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True, group_desc=name)
    return Axis(name, axis, ranks, ranks.index(rank), group)


def _group_of(mesh: Mesh, rank: int, axis: str) -> tuple[int, tuple[int, ...]]:
    """The group's number among the groups of its axis, in order of their first ranks; and its ranks."""
    if axis in PIPELINE_AXES:
        return _pipeline_group(mesh, rank, axis)
    if axis == "kv" and mesh.kv_heads is None:
        return rank, (rank,)
    ranks = tuple(mesh.group_of(rank, axis))
    number, weight = 0, 1
    for leg in mesh.groups(axis).starts:
        number += weight * (ranks[0] // leg.stride % leg.degree)
        weight *= leg.degree
    return number, ranks


def _pipeline_group(mesh: Mesh, rank: int, axis: str) -> tuple[int, tuple[int, ...]]:
    """A rank between the ends of its pipeline is in no group of ``embedding``."""
    stages = mesh.group_of(rank, "pp")
    pipeline, _ = _group_of(mesh, rank, "pp")
    place, last = stages.index(rank), len(stages) - 1
    if axis == "embedding":
        return (pipeline, (stages[0], stages[-1])) if last and place in (0, last) else (rank, (rank,))
    pair = min(place, last - place)
    if pair == last - pair:
        return rank, (rank,)
    return pipeline * (len(stages) // 2) + pair, (stages[pair], stages[last - pair])
