"""The token-mean loss: a sum over the valid labels at hand, divided by the count over the whole step.

Dividing by the global count, and not by each rank's or micro-batch's own, is what makes unequal token counts come out right.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime.reference.norm import widened

IGNORE_INDEX = -100
"""A label that does not count; torch's and transformers' convention."""


def shifted_labels(labels: Tensor, by: int = 1) -> Tensor:
    """The label of the token ``by`` places later: [B, S] to [B, S], the last ones ignored.

    To be done on whole sequences, before the sequence is cut over ranks.
    """
    return F.pad(labels[:, by:], (0, by), value=IGNORE_INDEX)


def shifted_tokens(tokens: Tensor, by: int) -> Tensor:
    """The token ``by`` places later, 0 where there is none (its loss is ignored and no earlier token sees it)."""
    return F.pad(tokens[:, by:], (0, by), value=0)


def token_count(labels: Tensor) -> Tensor:
    """int64 scalar: how many labels count."""
    return (labels != IGNORE_INDEX).sum()


def cross_entropy(logits: Tensor, labels: Tensor, count: Tensor | float) -> Tensor:
    """Sum of -log softmax(logits)[label] over the valid labels, over count; 0 where none is valid.

    Args:
        logits: [B, S, V]. labels: int64 [B, S], already shifted. count: valid labels of the whole step.
    """
    total = F.cross_entropy(widened(logits).flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
    return total / torch.as_tensor(count, dtype=total.dtype, device=total.device)
