"""How a rank's summed losses enter the job's: divided by the label count of all data, and reported once for all ranks that have them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from meshwright.spec.layout import Layout
from meshwright.spec.model import Model


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """Attributes:
    count: labels that count, over all data, an int64 scalar.
    balance_weight: of a layer's balance loss: the job's is the mean over its micro-batches, of which every rank of one has the number.
    same_loss, same_balance: ranks that have the same cross-entropy, or balance loss, of one micro-batch.
    """

    count: Tensor
    balance_weight: float
    same_loss: int
    same_balance: int

    def gradient_of(self, loss: Tensor) -> Tensor:
        """The derivative of the job's loss by a summed cross-entropy."""
        return torch.ones_like(loss) / self.count

    def reported(self, loss: Tensor | None, balance: Tensor | None) -> Tensor:
        """This rank's summand of the job's loss."""
        value = torch.zeros(()) if loss is None else loss.detach() / self.count / self.same_loss
        return value if balance is None else value + self.balance_weight * balance.detach() / self.same_balance


def loss_scale(model: Model, layout: Layout, count: Tensor, micro_batches: int) -> LossScale:
    """Of a step with ``micro_batches`` on each data-parallel rank."""
    coefficient = 0.0 if model.moe is None else model.moe.aux_loss_coefficient
    return LossScale(
        count=count, balance_weight=coefficient / (micro_batches * layout.dp),
        same_loss=1 if layout.sp and layout.tp > 1 and not layout.vocab else layout.tp, same_balance=layout.tp * layout.cp,
    )  # fmt: skip


@dataclass
class Ran:
    """What the micro-batches of a step gave on this rank: its summand of the loss; by layer, tokens that chose each expert, int64 [E]."""

    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    counts: dict[int, Tensor] = field(default_factory=dict)

    def add(self, reported: Tensor, counts: dict[int, Tensor]) -> None:
        self.loss = self.loss + reported
        for layer, chosen in counts.items():
            self.counts[layer] = self.counts[layer] + chosen if layer in self.counts else chosen
