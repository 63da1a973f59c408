"""The same steps of the same dense model, by our runtime and by torch's own FSDP2 and DTensor: a program of a rank for each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from meshwright.mesh import Mesh
from meshwright.recording.events import Event
from meshwright.runtime.groups import axes_of, make_groups
from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.proof_job import Piece, ProofJob
from meshwright.runtime.proof_rank import as_array
from meshwright.runtime.proof_steps import data_rank, global_batches
from meshwright.runtime.recorder import Collected, Recorder
from meshwright.runtime.reference.loss import IGNORE_INDEX
from meshwright.runtime.reference.train import Recipe, precision_named
from meshwright.runtime.scope import at
from meshwright.runtime.train_step import MicroBatch, Training
from torch_model import Transformer, load, packed_gradients, parallelise

RECIPE = Recipe(clip_norm=None)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side's answer on one rank.

    Attributes:
        losses: by step; ours is this rank's summand of it. gradients: of the last step: whole tensors of torch's, pieces of ours.
        events: of the last step.
        step_s, cpu_s: seconds of each step between two barriers, by the clock and of this process on a core.
    """

    losses: tuple[float, ...]
    gradients: dict[str, object]
    events: tuple[Event, ...]
    step_s: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()


class Clock:
    """Times of steps."""

    def __init__(self) -> None:
        self.step_s: list[float] = []
        self.cpu_s: list[float] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        dist.barrier()
        began, began_cpu = time.perf_counter(), time.process_time()
        yield
        self.cpu_s.append(time.process_time() - began_cpu)
        dist.barrier()
        self.step_s.append(time.perf_counter() - began)


def run_ours(job: ProofJob, seed: int, record: bool) -> Side:
    """train_step.Training, as proofs run it. record: under the recorder, which takes time of its own."""
    rank, layout = dist.get_rank(), job.layout
    mesh = Mesh(layout, job.model.attention.num_kv_heads)
    groups = make_groups(mesh, rank, 60.0, axes_of(layout))
    training = Training(job.model, layout, groups, job.workload.seq, precision_named(job.precision), RECIPE, seed, schedule=job.stages())
    own = data_rank(layout, mesh.coordinates(rank))
    losses, clock, sink = [], Clock(), Collected()
    for step in range(job.steps):
        batches = [MicroBatch(tokens=b.tokens, labels=b.labels) for i, b in enumerate(global_batches(job, step)) if i % layout.dp == own]
        recorder = Recorder(sink, groups.recorded()) if record and step == job.steps - 1 else nullcontext()
        with clock.step(), at(step=step), recorder:
            result = training.step(batches)
        losses.append(float(result.loss))
    pieces = {
        share.name: Piece(first_row=share.first_row, values=as_array(gradient))
        for (share, _), gradient in zip(training.shares(), result.gradients, strict=True)
    }
    return Side(losses=tuple(losses), gradients=pieces, events=tuple(sink.events), step_s=tuple(clock.step_s), cpu_s=tuple(clock.cpu_s))


def run_torch(job: ProofJob, seed: int, record: bool) -> Side:
    """torch's own tools, and the same loss: a sum over labels divided by the count of all of them."""
    layout, dtype = job.layout, precision_named(job.precision).parameters
    torch.set_default_dtype(dtype)
    mesh = init_device_mesh("cpu", (layout.dp_shard, layout.tp), mesh_dim_names=("dp", "tp"))
    network = Transformer(job.model, job.workload.seq)
    load(network, initialised_weights(job.model, seed, dtype), job.model)
    parallelise(network, layout, mesh)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=RECIPE.learning_rate, betas=RECIPE.betas, eps=RECIPE.eps, weight_decay=RECIPE.weight_decay, foreach=False
    )
    own, losses, clock, sink = mesh["dp"].get_local_rank(), [], Clock(), Collected()
    for step in range(job.steps):
        batches = [batch for i, batch in enumerate(global_batches(job, step)) if i % layout.dp == own]
        with clock.step(), Recorder(sink) if record and step == job.steps - 1 else nullcontext():
            loss = _torch_step(network, optimizer, batches, mesh, layout.tp)
        losses.append(float(loss))
    gradients = {name: as_array(gradient) for name, gradient in packed_gradients(network, job.model).items()}
    return Side(losses=tuple(losses), gradients=gradients, events=tuple(sink.events), step_s=tuple(clock.step_s), cpu_s=tuple(clock.cpu_s))


def _torch_step(network, optimizer, batches, mesh, tp: int) -> torch.Tensor:
    optimizer.zero_grad()
    count = torch.stack([(batch.labels != IGNORE_INDEX).sum() for batch in batches]).sum()
    dist.all_reduce(count, group=mesh["dp"].get_group())
    total = torch.zeros(())
    for batch in batches:
        logits, labels = network(batch.tokens).flatten(0, 1), batch.labels.flatten()
        if tp > 1:
            with loss_parallel():
                loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum") / count
                loss.backward()
            loss = loss.full_tensor()
        else:
            loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum") / count
            loss.backward()
        total = total + loss.detach()
    _gradient_norm(network)
    optimizer.step()
    return total


def _gradient_norm(network) -> torch.Tensor:
    """torch's own, which the runtime works out in every step: one for each mesh, because it refuses several at once."""
    by_mesh: dict[object, list[torch.Tensor]] = {}
    for parameter in network.parameters():
        by_mesh.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter.grad)
    norms = [torch.nn.utils.get_total_norm(gradients, foreach=False) for gradients in by_mesh.values()]
    return torch.stack([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]).norm()
