"""The same steps of the same dense model by torch.distributed.pipelining: a program of a rank, beside side_by_side.run_ours."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from meshwright.mesh import Mesh
from meshwright.runtime.groups import alone, make_groups
from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.parallel.linear import column_linear
from meshwright.runtime.parallel.model import ChunkPlan, RankModel, local_tensors
from meshwright.runtime.parallel.norm import norm
from meshwright.runtime.parallel.setting import MicroBatch, make_setting
from meshwright.runtime.parallel.vocabulary import cross_entropy
from meshwright.runtime.pipeline.executor import chunk_plans
from meshwright.runtime.proof_job import ProofJob
from meshwright.runtime.proof_rank import as_array
from meshwright.runtime.proof_steps import global_batches
from meshwright.runtime.recorder import Collected, Recorder
from meshwright.runtime.reference.loss import IGNORE_INDEX
from meshwright.runtime.reference.train import precision_named
from meshwright.schedule import placement
from meshwright.spec import names
from side_by_side import RECIPE, Clock, Side
from torch_model import Transformer, load, packed_gradients

SCHEDULES = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zb-v": schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": schedules.ScheduleDualPipeV,
}
"""torch's classes by our words."""


class Stage(nn.Module):
    """Some layers of a Transformer, with the ends that they have."""

    def __init__(self, network: Transformer, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = network.embedding if first else None
        self.layers = nn.ModuleList(network.layers[index] for index in layers)
        self.norm, self.head = (network.norm, network.head) if last else (None, None)
        self.tables = network.cos, network.sin

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, *self.tables)
        return x if self.head is None else self.head(self.norm(x))


class OwnStage(nn.Module):
    """The same of the runtime's own layers, so that the executors alone can be compared."""

    def __init__(self, job: ProofJob, seed: int, plan: ChunkPlan) -> None:
        super().__init__()
        dtype, groups = precision_named(job.precision).parameters, make_groups(Mesh(job.layout), dist.get_rank(), 60.0)
        setting = make_setting(job.model, job.layout, groups, job.workload.seq, dtype)
        self.part = RankModel(setting, [plan], local_tensors(setting, [plan], seed, dtype, dtype, dtype), 0.0)
        self.plan, self.setting = plan, setting

    def forward(self, x: Tensor) -> Tensor:
        batch = MicroBatch(tokens=x, labels=x)
        *before, last = self.part.pieces(self.plan)
        for piece in before if self.plan.last else [*before, last]:
            x = piece.run(x, batch).hidden
        if self.plan.last:
            weights = self.part._root_weights()
            x = column_linear(norm(x, weights, names.NORM, self.setting.model), weights[f"{names.HEAD}.weight"], None, self.setting.vocab)
        return x


def run_torch_pipeline(job: ProofJob, seed: int, record: bool) -> Side:
    """As side_by_side.run_torch; every micro-batch's loss is a sum over labels divided by the count of all of them."""
    return _run(job, seed, record, own_layers=False)


def run_torch_pipeline_of_own_layers(job: ProofJob, seed: int, record: bool) -> Side:
    """torch's executor, the runtime's layers; gradients are not brought back."""
    return _run(job, seed, record, own_layers=True)


def _run(job: ProofJob, seed: int, record: bool, own_layers: bool) -> Side:
    layout, rank, dtype = job.layout, dist.get_rank(), precision_named(job.precision).parameters
    torch.set_default_dtype(dtype)
    network = Transformer(job.model, job.workload.seq)
    load(network, initialised_weights(job.model, seed, dtype), job.model)
    plans = chunk_plans(job.model, layout, layout.pp * layout.virtual_stages)
    mine = [chunk for chunk, place in enumerate(placement(layout.schedule, layout.pp, layout.virtual_stages)) if place == rank]
    modules: dict[int, nn.Module] = {
        chunk: OwnStage(job, seed, plans[chunk])
        if own_layers
        else Stage(network, plans[chunk].layers, plans[chunk].first, plans[chunk].last)
        for chunk in mine
    }
    stages = [_stage(job, chunk, modules[chunk], len(plans)) for chunk in mine]
    counts = [torch.zeros((), dtype=torch.int64)]

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        if own_layers:
            return cross_entropy(logits, labels, job.model.vocab_size, alone("tp")) / counts[0]
        total = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
        return total / counts[0]

    make = SCHEDULES[layout.schedule]
    one_stage = issubclass(make, schedules.PipelineScheduleSingle)
    schedule = make(stages[0] if one_stage else stages, layout.micro_batches(job.workload.batch), loss_fn=loss, scale_grads=False)
    parameters = [parameter for module in modules.values() for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=RECIPE.learning_rate, betas=RECIPE.betas, eps=RECIPE.eps, weight_decay=RECIPE.weight_decay, foreach=False
    )
    found, clock, sink = [], Clock(), Collected()
    for step in range(job.steps):
        batches = global_batches(job, step)
        tokens, labels = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("tokens", "labels"))
        with clock.step(), Recorder(sink) if record and step == job.steps - 1 else nullcontext():
            optimizer.zero_grad()
            counts[0] = (labels != IGNORE_INDEX).sum()
            losses: list[Tensor] = []
            has_last = any(plans[chunk].last for chunk in mine)
            given = (tokens,) if any(plans[chunk].first for chunk in mine) else ()
            wanted = {"target": labels, "losses": losses} if has_last else {}
            schedule.step(*given, **wanted, return_outputs=False)
            squares = torch.stack([parameter.grad.square().sum() for parameter in parameters]).sum()
            dist.all_reduce(squares)
            optimizer.step()
        found.append(float(torch.stack(losses).sum()) if losses else 0.0)
    gradients = {name: as_array(gradient) for name, gradient in packed_gradients(network, job.model).items()}
    return Side(losses=tuple(found), gradients=gradients, events=tuple(sink.events), step_s=tuple(clock.step_s), cpu_s=tuple(clock.cpu_s))


def _stage(job: ProofJob, chunk: int, module: nn.Module, number: int) -> PipelineStage:
    """Shapes are given, so that torch asks for fewer of them."""
    tokens = torch.zeros((job.layout.mb, job.workload.seq), dtype=torch.int64)
    stream = torch.zeros((*tokens.shape, job.model.hidden_size), requires_grad=True)
    out = torch.zeros((*tokens.shape, job.model.vocab_size), requires_grad=True) if chunk == number - 1 else stream
    return PipelineStage(module, chunk, number, torch.device("cpu"), input_args=tokens if chunk == 0 else stream, output_args=out)
