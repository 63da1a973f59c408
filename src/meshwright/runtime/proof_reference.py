"""A proof's steps on one device, and where its router sends the tokens that each rank will hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from meshwright.mesh import Mesh
from meshwright.runtime.parallel.sequence import held_positions
from meshwright.runtime.parallel.setting import stream_positions
from meshwright.runtime.proof_job import ProofJob, Whole
from meshwright.runtime.proof_rank import as_array
from meshwright.runtime.proof_steps import data_rank, global_batches, recipe_of
from meshwright.runtime.reference.moe import tokens_per_expert
from meshwright.runtime.reference.train import Step, precision_named, train_from_seed


def run(job: ProofJob) -> Whole:
    """See proof_job.run_reference."""
    steps = [global_batches(job, step) for step in range(job.steps)]
    with _one_thread():
        done = train_from_seed(job.model, job.seed, steps, recipe_of(job), precision_named(job.precision))
    assert done.seed is not None
    return Whole(
        losses=tuple(step.loss for step in done.steps),
        gradient_norms=tuple(step.gradient_norm for step in done.steps),
        gradients=tuple({name: as_array(tensor) for name, tensor in step.gradients.items()} for step in done.steps),
        weights={name: as_array(tensor) for name, tensor in done.weights.items()},
        seed=done.seed,
        loads=_loads(job, done.steps),
        experts=tuple(tuple({layer: chosen.numpy() for layer, chosen in batch.items()} for batch in step.experts) for step in done.steps),
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrices on many threads wait for each other: 35 s instead of 0.4 s on a busy machine with 2 cores, measured November 2026."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _loads(job: ProofJob, steps: Sequence[Step]) -> Any:
    """See proof_job.Whole.loads."""
    layout, moe, mesh = job.layout, job.model.moe, Mesh(job.layout)
    if moe is None:
        return None
    layers = sorted(steps[0].experts[0])
    micro_batches = layout.micro_batches(job.workload.batch)
    loads = torch.zeros((len(steps), micro_batches, len(layers), layout.world_size, moe.num_experts), dtype=torch.int64)
    for rank in range(layout.world_size):
        place = mesh.coordinates(rank)
        positions = stream_positions(layout, held_positions(layout, place["cp"], job.workload.seq), place["tp"]).tensor
        for number, step in enumerate(steps):
            for i in range(micro_batches):
                chosen = step.experts[i * layout.dp + data_rank(layout, place)]
                for at, layer in enumerate(layers):
                    loads[number, i, at, rank] = tokens_per_expert(chosen[layer][:, positions], moe.num_experts)
    return loads.numpy()
