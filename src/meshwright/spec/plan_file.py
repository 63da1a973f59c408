"""plan.toml: everything that a plan needs, resolved, so that a changed catalog or default does not change it (DESIGN section 6).

The file holds the model, the cluster with its device, the workload, the layout, the stack, the versions that wrote it, and
a hash over all of that. A file that was edited no longer fits its hash and is refused; without the line ``hash`` it is
read as a new plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import __version__
from meshwright.errors import InputError, Mistakes
from meshwright.spec.cluster import Cluster
from meshwright.spec.files import read_toml, write_text
from meshwright.spec.layer_runs import print_layers, read_layers
from meshwright.spec.layout import Layout, parse_layout
from meshwright.spec.load_cluster import read_cluster
from meshwright.spec.load_stack import is_stack_file, read_stack, stack_table
from meshwright.spec.model import LayerKind, Model
from meshwright.spec.model_rules import note_broken_rules
from meshwright.spec.plain_data import from_table, to_table
from meshwright.spec.stack import STACKS, Stack
from meshwright.spec.tables import Table
from meshwright.spec.toml_writer import toml_text
from meshwright.spec.workload import LARGEST_BATCH, PRECISIONS, Decode, Prefill, Training

__all__ = ["PLAN_FORMAT", "Plan", "load_plan", "plan_hash", "plan_text", "read_plan", "save_plan"]

PLAN_FORMAT = 1
"""Version of the file's keys; a reader refuses a later one."""

Workload = Training | Prefill | Decode
WORKLOADS: dict[str, type[Training] | type[Prefill] | type[Decode]] = {"training": Training, "prefill": Prefill, "decode": Decode}

HEADER = "# A plan of Meshwright. The hash covers every value: to change one by hand, delete the line `hash`.\n\n"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One layout of one model on one cluster, for one workload.

    Attributes:
        stack: the name of the stack that the plan is for (spec/stack.py) or the file of a calibrated one, "" for none in particular.
        calibrated: what was in that file, so that the plan stays what it was when the file changes or is gone.
        memory_fraction: part of the device's memory that may be filled.
        versions: (name, version) of what made the plan.
    """

    model: Model
    cluster: Cluster
    workload: Workload
    layout: Layout
    stack: str = ""
    calibrated: Stack | None = None
    memory_fraction: float = 0.92
    versions: tuple[tuple[str, str], ...] = (("meshwright", __version__),)

    @property
    def gpus(self) -> int:
        return self.layout.world_size


def save_plan(plan: Plan, path: Path) -> None:
    """Write ``plan`` whole or not at all. Raises InputError where the path cannot be written."""
    write_text(path, plan_text(plan))


def load_plan(path: Path) -> Plan:
    """The plan of a file. Raises InputError with every mistake in it, one of them if its hash does not fit."""
    return read_plan(read_toml(path), str(path))


def plan_text(plan: Plan) -> str:
    """The text of the plan's file."""
    values = _plan_table(plan)
    return HEADER + toml_text({"hash": _hash_of(values), **values})


def plan_hash(plan: Plan) -> str:
    """``sha256:`` and 64 hex digits over everything in the plan's file; certificates and recordings carry it."""
    return _hash_of(_plan_table(plan))


def read_plan(values: Mapping[str, Any], file: str) -> Plan:
    """A plan from the tables of a file. Raises InputError with every mistake; ``file`` is named in them."""
    with Mistakes.of(file) as mistakes:
        table = Table(values, mistakes)
        _check_format(table)
        _check_hash(table)
        stack, calibrated = _read_stack(table)
        memory_fraction = table.number("memory_fraction", above=0.0, high=1.0)
        versions = _read_versions(table)
        workload = _read_workload(table)
        layout = _read_layout(table)
        model = _read_model(table)
        cluster = _read_cluster(table)
        if layout is not None and cluster is not None and cluster.num_gpus is not None and layout.world_size > cluster.num_gpus:
            table.note("layout", f"at most num_gpus = {cluster.num_gpus} of [cluster]", problem=f"has {layout.world_size} ranks")
        table.refuse_unread()
    assert model is not None and cluster is not None and workload is not None and layout is not None
    return Plan(
        model=model, cluster=cluster, workload=workload, layout=layout, stack=stack, calibrated=calibrated,
        memory_fraction=memory_fraction, versions=versions,
    )  # fmt: skip


def _read_stack(table: Table) -> tuple[str, Stack | None]:
    """A stack's name; or the file of a calibrated one with what was in it. Without that the file is read when it is used."""
    said = table.values.get("stack")
    if not (isinstance(said, str) and is_stack_file(said)):
        return table.choice("stack", STACKS, ""), None
    inner = table.table("calibrated", required=False)
    return table.text("stack"), None if inner is None else read_stack(inner, said)


def _plan_table(plan: Plan) -> dict[str, Any]:
    """The tables of the file without the hash; ``[cluster]`` has the keys of a cluster file of its own."""
    kind = next(name for name, workload in WORKLOADS.items() if isinstance(plan.workload, workload))
    values = {
        "format": PLAN_FORMAT,
        "stack": plan.stack,
        "calibrated": {} if plan.calibrated is None else stack_table(plan.calibrated),
        "memory_fraction": plan.memory_fraction,
        "gpus": plan.gpus,
        "layout": str(plan.layout),
        "versions": dict(plan.versions),
        "workload": {"kind": kind, **to_table(plan.workload)},
        "model": to_table(plan.model, {LayerKind: print_layers}),
        "cluster": to_table(plan.cluster),
    }
    return {key: value for key, value in values.items() if value not in ("", {})}


def _hash_of(values: Mapping[str, Any]) -> str:
    """A hash that does not depend on the order of keys, blanks or comments; floats count to the last bit."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _check_format(table: Table) -> None:
    version = table.integer("format")
    if table.sound("format") and version > PLAN_FORMAT:
        hint = "a later version of Meshwright wrote this plan: update, or plan again"
        table.note("format", f"{PLAN_FORMAT} or less", hint, "is not known to this version")


def _check_hash(table: Table) -> None:
    stated = table.text("hash", None)
    if stated is None:
        return
    try:
        computed = _hash_of({key: value for key, value in table.values.items() if key != "hash"})
    except (ValueError, RecursionError):  # numbers of thousands of digits; nothing that we wrote
        computed = "that of a plan which Meshwright wrote"
    if stated != computed:
        hint = "if the change is meant, delete the line `hash`: the file then counts as a new plan"
        table.note("hash", computed, hint, "does not fit the rest of the file, which was changed after it was saved")


def _read_versions(table: Table) -> tuple[tuple[str, str], ...]:
    inner = table.table("versions", required=False)
    return () if inner is None else tuple((name, inner.text(name)) for name in inner.own_keys())


def _read_workload(table: Table) -> Workload | None:
    inner = table.table("workload")
    if inner is None:
        return None
    kind = inner.choice("kind", WORKLOADS)
    if not inner.sound("kind"):
        return None
    workload = from_table(WORKLOADS[kind], inner)
    if isinstance(workload, Training) and workload.precision is not None:
        inner.choice("precision", PRECISIONS)
    if isinstance(workload, Training) and inner.sound("batch"):
        inner.integer("batch", high=LARGEST_BATCH)
    return workload


def _read_layout(table: Table) -> Layout | None:
    gpus = table.integer("gpus")
    text = table.text("layout")
    if not table.sound("gpus", "layout"):
        return None
    try:
        return parse_layout(text, gpus, file=table.mistakes.file)
    except InputError as error:
        table.mistakes.extend(error, prefix="layout.")
        return None


def _read_model(table: Table) -> Model | None:
    inner = table.table("model")
    model = None if inner is None else from_table(Model, inner, {LayerKind: read_layers})
    if inner is not None and model is not None:
        note_broken_rules(model, inner)
    return model


def _read_cluster(table: Table) -> Cluster | None:
    inner = table.table("cluster")
    if inner is None:
        return None
    try:
        return read_cluster(inner.values, table.mistakes.file)
    except InputError as error:
        table.mistakes.extend(error, prefix="cluster.")
        return None
