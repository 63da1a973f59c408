"""Our Transformer against transformers' implementation of each family: logits, loss and every gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from meshwright.errors import InputError
from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.reference.import_huggingface import from_huggingface
from meshwright.runtime.reference.loss import IGNORE_INDEX, shifted_labels, token_count
from meshwright.runtime.reference.model import forward, loss
from meshwright.runtime.reference.moe import smallest_margin
from runtime.reference.families import FAMILIES, Family
from runtime.reference.transformers_float64 import balance_by_layer, casts, transformers_model

BATCH, LENGTH = 2, 23


def _tokens(family: Family) -> tuple[Tensor, Tensor]:
    """Random tokens, and labels of which some do not count."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, family.model.vocab_size, (BATCH, LENGTH), generator=generator)
    labels = tokens.clone()
    labels[0, 5:11] = IGNORE_INDEX
    return tokens, labels


def _ours(family: Family, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    model = family.model
    tokens, labels = _tokens(family)
    shifted = shifted_labels(labels)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    output = forward(model, leaves, tokens)
    value = loss(model, output, shifted, token_count(shifted))
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    for routing in output.routings.values():
        assert smallest_margin(routing, model.moe) > 1e-6, "choose another seed: float32 routers could choose other experts"
    return output.logits.detach(), value.detach(), dict(zip(leaves, gradients, strict=True))


def _theirs(family: Family, weights: dict[str, Tensor], without_float32: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    tokens, labels = _tokens(family)
    with casts(off=without_float32):
        model = transformers_model(family, weights, without_float32)
        output = model(input_ids=tokens, labels=labels)
        value = output.loss
        moe = family.model.moe
        if moe is not None and moe.aux_loss_coefficient:
            value = value - moe.aux_loss_coefficient * output.aux_loss + balance_by_layer(family, output.router_logits)
        value.backward()
    state = model.state_dict()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    buffers = {name: torch.zeros_like(tensor) for name, tensor in state.items() if name not in gradients}
    return output.logits.detach(), value.detach(), from_huggingface(family.model, buffers | gradients)


def _errors(family: Family, without_float32: bool, floor: float) -> dict[str, float]:
    """Largest difference of each tensor, relative to the largest entry there or, if that is more, to floor times the model's largest."""
    weights = initialised_weights(family.model, seed=3, dtype=torch.float64)
    logits, value, gradients = _ours(family, weights)
    their_logits, their_value, their_gradients = _theirs(family, weights, without_float32)
    assert logits.dtype == their_logits.dtype == torch.float64
    largest = max(_largest(gradient) for gradient in their_gradients.values())
    errors = {"logits": _largest(logits - their_logits) / _largest(their_logits), "loss": abs(value / their_value - 1).item()}
    for name, gradient in gradients.items():
        theirs = their_gradients[name]
        errors[name] = _largest(gradient - theirs) / max(_largest(theirs), floor * largest)
    return errors


def _largest(x: Tensor) -> float:
    return x.abs().max().item()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_logits_and_gradients_are_transformers_own(family: Family) -> None:
    # Both sides round in float64 only, in another order: 1e-15 is usual, and a fault stands out by ten orders of magnitude.
    errors = _errors(family, without_float32=True, floor=0.01)
    assert {name: error for name, error in errors.items() if not error < 1e-12} == {}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_as_shipped_only_transformers_float32_casts_differ(family: Family) -> None:
    # float32 keeps 24 bits: 6e-8 for each rounding of theirs, a few of them in a row. Rounding upstream of a tensor does not shrink
    # with that tensor's own gradient, so the gradient counts as one vector (tensor by tensor, latent attention's reach 1.5e-6).
    errors = _errors(family, without_float32=False, floor=1.0)
    assert {name: error for name, error in errors.items() if not error < 1e-6} == {}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_trained_parameter_has_a_gradient(family: Family) -> None:
    # A parameter that nothing reads would agree with everything.
    _, _, gradients = _ours(family, initialised_weights(family.model, seed=3, dtype=torch.float64))
    assert [name for name, gradient in gradients.items() if not gradient.any()] == [
        name for name in gradients if name.endswith("selection_bias")
    ]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)], ids=["float32", "bf16"])
def test_narrower_dtypes_stay_near_float64(family: Family, dtype: torch.dtype, bound: float) -> None:
    # About a hundred roundings of 6e-8 or 4e-3 in a row, partly cancelling, relative to the largest logit. Top-k choices may differ in
    # bf16 for a token or two, so there only the median token is judged.
    weights = {name: t.to(dtype) for name, t in initialised_weights(family.model, seed=3, dtype=torch.float64).items()}
    tokens, labels = _tokens(family)
    output = forward(family.model, weights, tokens)
    exact = forward(family.model, {name: t.double() for name, t in weights.items()}, tokens)
    assert output.logits.dtype == dtype
    worst = (output.logits - exact.logits).abs().amax(-1).flatten() / exact.logits.abs().max()
    assert (worst.max() if dtype == torch.float32 else worst.median()).item() < bound
    assert loss(family.model, output, shifted_labels(labels), 10).dtype == torch.float32


def test_a_balance_loss_of_a_sigmoid_router_is_refused() -> None:
    model = next(family.model for family in FAMILIES if family.name == "deepseek_v3")
    model = replace(model, moe=replace(model.moe, aux_loss_coefficient=0.01))
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    output = forward(model, initialised_weights(model, seed=0, dtype=torch.float32), tokens)
    with pytest.raises(InputError, match=r"`moe.aux_loss_coefficient` = 0.01 is not legal\n.*0 with moe.score = sigmoid"):
        loss(model, output, tokens, 4)
