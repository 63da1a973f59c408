"""One rank of a job at its true size, without numbers: it records what it sends in one step (dry.py), and measures what it keeps.

Routers have no numbers either: every rank sends its token copies by one even load, E experts each with as many copies, or one more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.mesh import Mesh
from meshwright.recording.write import RecordingWriter
from meshwright.runtime.dry import fake_job
from meshwright.runtime.groups import axes_of, make_groups
from meshwright.runtime.parallel.experts import Load
from meshwright.runtime.parallel.setting import MicroBatch
from meshwright.runtime.proof_job import stage_schedule
from meshwright.runtime.recorder import Recorder, header
from meshwright.runtime.reference.train import Recipe, precision_named
from meshwright.runtime.scope import at
from meshwright.runtime.train_step import Training
from meshwright.schedule import Schedule
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.rules.rule import kv_heads
from meshwright.spec.workload import Training as Workload


@dataclass(frozen=True, kw_only=True)
class DryJob:
    """What a rank needs to know; picklable. Attributes as those of ProofJob.

    even_load: copies that every rank sends to each expert [E], () without experts.
    """

    model: Model
    workload: Workload
    layout: Layout
    precision: str
    recording: str
    even_load: tuple[int, ...] = ()
    plan_hash: str = ""
    schedule: Schedule | None = None


def run_dry_rank(job: DryJob, rank: int) -> tuple[dict[str, int], int]:
    """Record one step of ``rank``; RankResult's ``saved_bytes`` and ``most_in_flight``."""
    model, layout = job.model, job.layout
    with fake_job(rank, layout.world_size) as fake:
        mesh = Mesh(layout, kv_heads(model))
        groups = make_groups(mesh, rank, 60.0, axes_of(layout))
        precision, gathered = precision_named(job.precision), job.precision == "fsdp"
        training = Training(model, layout, groups, job.workload.seq, precision, Recipe(clip_norm=1.0), None, gathered,
                            stage_schedule(layout, job.workload, job.schedule))  # fmt: skip
        head = header(rank, layout.world_size, groups.recorded().values(), mesh.coordinates(rank), job.plan_hash)
        with fake, RecordingWriter(Path(job.recording), head) as writer:
            training.give_storage()
            tokens = torch.zeros((layout.mb, job.workload.seq), dtype=torch.int64)
            batch = MicroBatch(tokens=tokens, labels=tokens, load=lambda layer: _load(job) if job.even_load else None)
            with Recorder(writer, groups.recorded()), at(step=0):
                training.step([batch] * layout.micro_batches(job.workload.batch))
        return training.saved_bytes, training.most_in_flight


def _load(job: DryJob) -> Load:
    """Every rank sends the same, so each gets ep times its own experts' share."""
    layout, sent = job.layout, job.even_load
    local = len(sent) // layout.ep
    place = dist.get_rank()  # in the world; its place in ep follows from the mesh
    own = Mesh(layout).place(place, "ep") * local
    received = (sent[own : own + local],) * layout.ep
    worked = tuple(count * layout.ep for count in sent[own : own + local])
    return Load(sent=sent, received=received, by_etp=(worked,) * layout.etp)
