"""A few optimizer steps on one device: what a layout's losses, gradients and weights are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.errors import InputError, Mistake, NoAnswer
from meshwright.runtime.dropout import Dropout
from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.reference.loss import token_count
from meshwright.runtime.reference.model import MTP_LOSS_WEIGHT, Output, forward, loss
from meshwright.runtime.reference.moe import smallest_margin, tokens_per_expert, updated_selection_bias
from meshwright.spec import names
from meshwright.spec.model import Model
from meshwright.spec.parameters import all_parameters

ROUTING_MARGIN = 1e-9
"""Any layout chooses the same experts where every choice is clearer than this: ten million float64 roundings of a score near 1."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtype of the parameters that compute, of the gradients that accumulate, and of the weights that the optimizer keeps."""

    parameters: torch.dtype
    gradients: torch.dtype
    master: torch.dtype


PRECISIONS = {
    "float64": Precision(parameters=torch.float64, gradients=torch.float64, master=torch.float64),
    "float32": Precision(parameters=torch.float32, gradients=torch.float32, master=torch.float32),
    "bf16": Precision(parameters=torch.bfloat16, gradients=torch.bfloat16, master=torch.float32),
    "bf16-fp32grad": Precision(parameters=torch.bfloat16, gradients=torch.float32, master=torch.float32),
    "fsdp": Precision(parameters=torch.bfloat16, gradients=torch.float32, master=torch.float32),
}
"""The recipes of ``--precision`` that execute here."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a step is taken. AdamW on every trained parameter; eps far above rounding, so that a gradient near 0 does not decide a sign."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float | None = None
    mtp_weight: float = MTP_LOSS_WEIGHT
    dropout: float = 0.0
    dropout_seed: int = 0


@dataclass(frozen=True)
class MicroBatch:
    """tokens and labels: int64 [b, S]; labels are already shifted, IGNORE_INDEX where there is none."""

    tokens: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Step:
    """What one optimizer step did.

    Attributes:
        loss: of the whole step. gradients: by name, before clipping. gradient_norm: over all of them.
        experts: for each micro-batch, by layer index, int64 [b, S, k]: the experts that each token chose.
        margin: the closest of all routing choices.
    """

    loss: float
    gradients: dict[str, Tensor]
    gradient_norm: float
    experts: tuple[dict[int, Tensor], ...]
    margin: float


@dataclass(frozen=True)
class Run:
    """steps, in order; weights: of the optimizer, after the last; seed: of the initial weights, None if they were given."""

    steps: tuple[Step, ...]
    weights: dict[str, Tensor]
    seed: int | None = None

    @property
    def margin(self) -> float:
        return min(step.margin for step in self.steps)


def train(model: Model, weights: dict[str, Tensor], steps: Sequence[Sequence[MicroBatch]], recipe: Recipe, precision: Precision) -> Run:
    """Run these steps, each over its micro-batches of the whole job in the order of their sequences.

    Args:
        weights: initial, by full name; they are copied.
    """
    parameters = all_parameters(model)
    master = {name: tensor.detach().to(precision.master, copy=True) for name, tensor in weights.items()}
    trained = [name for name in master if parameters[name].trained]
    optimizer = torch.optim.AdamW(
        [master[name] for name in trained],
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        foreach=False,  # one parameter after the other: the arithmetic does not depend on how they are grouped
    )
    done = []
    for index, batches in enumerate(steps):
        # a router's selection bias is moved in steps that bf16 would swallow: it stays in the master's dtype
        working = {name: tensor.to(precision.parameters if parameters[name].trained else tensor.dtype) for name, tensor in master.items()}
        dropout = Dropout(recipe.dropout, recipe.dropout_seed, index) if recipe.dropout else None
        step = _gradients(model, working, trained, batches, recipe, precision, dropout)
        _update(optimizer, master, step, recipe)
        _move_selection_biases(model, master, step)
        done.append(step)
    return Run(tuple(done), master)


def train_from_seed(
    model: Model, seed: int, steps: Sequence[Sequence[MicroBatch]], recipe: Recipe, precision: Precision, margin: float = ROUTING_MARGIN
) -> Run:
    """The same from random weights; takes the next seed until every routing choice of the run is clearer than ``margin``.

    Raises:
        NoAnswer: if 100 seeds in a row have a closer choice.
    """
    for candidate in range(seed, seed + 100):
        run = train(model, initialised_weights(model, candidate, precision.parameters), steps, recipe, precision)
        if run.margin > margin:
            return Run(run.steps, run.weights, candidate)
    raise NoAnswer(f"{model.name}: no seed from {seed} to {seed + 99} routes every token by more than {margin}")


def precision_named(name: str) -> Precision:
    """One of PRECISIONS, or InputError."""
    if name not in PRECISIONS:
        raise InputError([Mistake("--precision", "precision", name, " or ".join(PRECISIONS), "other recipes can be planned, not executed")])
    return PRECISIONS[name]


def expert_loads(experts: Tensor, source: Tensor, ranks: int, num_experts: int) -> Tensor:
    """int64 [ranks, E]: how many of each rank's tokens go to each expert, in one layer of one micro-batch.

    Args:
        experts: int64 [b, S, k]. source: int64 [b, S], the rank that holds each token at the router.
    """
    pairs = source[..., None] * num_experts + experts
    return torch.bincount(pairs.flatten(), minlength=ranks * num_experts).view(ranks, num_experts)


def _gradients(
    model: Model,
    working: dict[str, Tensor],
    trained: list[str],
    batches: Sequence[MicroBatch],
    recipe: Recipe,
    precision: Precision,
    dropout: Dropout | None,
) -> Step:
    """Forward and backward over all micro-batches, accumulated in the gradients' dtype."""
    count = sum(int(token_count(batch.labels)) for batch in batches)
    leaves = working | {name: working[name].detach().requires_grad_() for name in trained}
    gradients = {name: torch.zeros_like(working[name], dtype=precision.gradients) for name in trained}
    total, first_sequence, experts, margin = 0.0, 0, [], math.inf
    for batch in batches:
        output = forward(model, leaves, batch.tokens, first_sequence, dropout)
        value = loss(model, output, batch.labels, count, len(batches), recipe.mtp_weight)
        found = torch.autograd.grad(value, [leaves[name] for name in trained], allow_unused=True, materialize_grads=True)
        for name, gradient in zip(trained, found, strict=True):
            gradients[name] += gradient.to(precision.gradients)
        total += value.item()
        first_sequence += len(batch.tokens)
        experts.append(_chosen(output, batch))
        if model.moe:
            margin = min([margin, *(smallest_margin(routing, model.moe) for routing in output.routings.values())])
    return Step(total, gradients, _norm(gradients), tuple(experts), margin)


def _chosen(output: Output, batch: MicroBatch) -> dict[int, Tensor]:
    return {index: routing.experts.unflatten(0, batch.tokens.shape) for index, routing in output.routings.items()}


def _norm(gradients: dict[str, Tensor]) -> float:
    """Euclidean norm over all entries of all gradients, summed in float64."""
    return math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients.values()))


def _update(optimizer: torch.optim.Optimizer, master: dict[str, Tensor], step: Step, recipe: Recipe) -> None:
    """Clip by the global norm as torch's clip_grad_norm_ does (its 1e-6 included), then one AdamW step."""
    scale = 1.0 if recipe.clip_norm is None else min(1.0, recipe.clip_norm / (step.gradient_norm + 1e-6))
    for name, gradient in step.gradients.items():
        master[name].grad = gradient.to(master[name].dtype) * scale
    optimizer.step()
    optimizer.zero_grad()


def _move_selection_biases(model: Model, master: dict[str, Tensor], step: Step) -> None:
    """Loss-free balancing: by the loads of the whole step, all micro-batches together."""
    if model.moe is None or not model.moe.selection_bias:
        return
    for index in step.experts[0]:
        name = f"{names.layer(index, names.ROUTER)}.selection_bias"
        counts = sum(tokens_per_expert(chosen[index], model.moe.num_experts) for chosen in step.experts)
        master[name] = updated_selection_bias(master[name], counts)
