"""What the ranks of a proof and its reference agree on: tokens and labels of every step, who takes which, and the recipe.

Labels are uneven on purpose. Ranks with fewer of them than others, or none, are where means of means go wrong: sequence i of a step
ignores its first i S / batch labels, and every second step ignores its last sequence altogether.
"""

from __future__ import annotations

import torch

from meshwright.runtime.proof_job import ProofJob
from meshwright.runtime.reference.loss import IGNORE_INDEX, shifted_labels
from meshwright.runtime.reference.train import MicroBatch, Recipe
from meshwright.spec.layout import Layout


def recipe_of(job: ProofJob) -> Recipe:
    return Recipe(clip_norm=job.clip_norm, dropout=job.dropout, dropout_seed=job.seed)


def sample_batch(vocab_size: int, batch: int, seq: int, seed: int, step: int) -> MicroBatch:
    """The whole batch of one step, [batch, seq]; labels are shifted."""
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + step)
    tokens = torch.randint(0, vocab_size, (batch, seq), generator=generator)
    labels = shifted_labels(tokens)
    for sequence in range(batch):
        labels[sequence, : sequence * seq // batch] = IGNORE_INDEX
    if step % 2 and batch > 1:
        labels[-1] = IGNORE_INDEX
    return MicroBatch(tokens, labels)


def global_batches(job: ProofJob, step: int) -> list[MicroBatch]:
    """The micro-batches of the whole job, mb sequences each. Micro-batch i of data-parallel rank d is number i dp + d."""
    whole = sample_batch(job.model.vocab_size, job.workload.batch, job.workload.seq, job.seed, step)
    size = job.layout.mb
    return [MicroBatch(tokens, labels) for tokens, labels in zip(whole.tokens.split(size), whole.labels.split(size), strict=True)]


def data_rank(layout: Layout, coordinates: dict[str, int]) -> int:
    """The d of global_batches."""
    return coordinates["dp_replicate"] * layout.dp_shard + coordinates["dp_shard"]
