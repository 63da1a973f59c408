"""Tokens and labels for proofs, from a seed: uneven on purpose.

Ranks with fewer labels than others, or none, are where means of means go wrong: sequence i of a step ignores its first i S / batch labels, and
every second step ignores its last sequence altogether.
"""

from __future__ import annotations

import torch

from meshwright.runtime.reference.loss import IGNORE_INDEX, shifted_labels
from meshwright.runtime.reference.train import MicroBatch


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


def micro_batches(whole: MicroBatch, size: int) -> list[MicroBatch]:
    """Of ``size`` sequences each, in order."""
    return [MicroBatch(tokens, labels) for tokens, labels in zip(whole.tokens.split(size), whole.labels.split(size), strict=True)]
