"""DeepSeek-V3's extra layers against transformers' ``MtpModel``, which drafts with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_layers import MtpModel

from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.reference.import_huggingface import from_huggingface, to_huggingface
from meshwright.runtime.reference.loss import shifted_labels, token_count
from meshwright.runtime.reference.model import Output, forward, loss
from runtime.reference.families import FAMILIES, Family
from runtime.reference.transformers_float64 import casts, transformers_model

DEEPSEEK = next(family for family in FAMILIES if family.name == "deepseek_v3")


def _family(depth: int) -> Family:
    def config() -> object:
        made = DEEPSEEK.config()
        made.num_mtp_layers = depth
        return made

    return replace(DEEPSEEK, model=replace(DEEPSEEK.model, mtp_layers=depth), config=config)


def _their_model(family: Family, weights: dict[str, Tensor]) -> tuple[torch.nn.Module, MtpModel]:
    depth, first = family.model.mtp_layers, family.model.num_layers
    of_main = {name: tensor for name, tensor in weights.items() if not name.startswith(tuple(f"layers.{first + k}." for k in range(depth)))}
    main = transformers_model(replace(family, model=replace(family.model, mtp_layers=0)), of_main, without_float32=True)
    drafting = MtpModel(main, depth).to(torch.float64)
    state = {}
    for key, tensor in to_huggingface(family.model, weights, "fused").items():
        for k in range(depth):
            prefix = f"model.layers.{first + k}."
            if key.startswith(prefix):
                inside = key.removeprefix(prefix).replace("shared_head.norm", "post_norm")
                own = inside.split(".")[0] in ("enorm", "hnorm", "eh_proj", "post_norm")
                state[f"layers.{k}.{'' if own else 'mtp_block.'}{inside}"] = tensor
    missing, unexpected = drafting.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"embed_tokens.weight", "shared_head.weight"}
    return main, drafting


@pytest.mark.parametrize("depth", [1, 2])
def test_multi_token_prediction_is_transformers_own(depth: int) -> None:
    family = _family(depth)
    weights = {name: t.requires_grad_() for name, t in initialised_weights(family.model, seed=3, dtype=torch.float64).items()}
    tokens = torch.randint(0, family.model.vocab_size, (2, 13), generator=torch.Generator().manual_seed(5))
    output = forward(family.model, weights, tokens)
    with casts(off=True):
        main, drafting = _their_model(family, {name: tensor.detach() for name, tensor in weights.items()})
        hidden = main.model(tokens).last_hidden_state
        positions = torch.arange(13)[None]
        theirs = []
        for k in range(depth):
            later = F.pad(tokens[:, k + 1 :], (0, k + 1))
            hidden = drafting.forward_layer(k, hidden, positions, None, input_ids=later)
            theirs.append(drafting._project_to_logits(hidden))
    assert len(output.mtp_logits) == depth
    for logits, expected in zip(output.mtp_logits, theirs, strict=True):
        # float64 on both sides, logits of order one
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    _compare_gradients(family, weights, output.mtp_logits, theirs, main, drafting)


def _compare_gradients(
    family: Family, weights: dict[str, Tensor], ours: tuple[Tensor, ...], theirs: list[Tensor], main: torch.nn.Module, drafting: MtpModel
) -> None:
    """Of the same function of the logits, for every parameter of the model and of its extra layers."""
    found = torch.autograd.grad(sum(t.square().mean() for t in ours), list(weights.values()), allow_unused=True, materialize_grads=True)
    sum(t.square().mean() for t in theirs).backward()
    state = {key: torch.zeros_like(tensor) for key, tensor in to_huggingface(family.model, weights, "fused").items()}
    state |= {key: parameter.grad for key, parameter in main.named_parameters()}
    for key, parameter in drafting.named_parameters():
        if key.startswith("layers."):
            _, k, inside = key.split(".", 2)
            inside = inside.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
            state[f"model.layers.{family.model.num_layers + int(k)}.{inside}"] = parameter.grad
    expected = from_huggingface(family.model, state)
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for (name, gradient), own in zip(expected.items(), found, strict=True):
        torch.testing.assert_close(own, gradient, rtol=0, atol=1e-12 * largest, msg=lambda text, name=name: f"{name}: {text}")
        assert own.any() or name.endswith("selection_bias"), name


def test_depth_k_predicts_the_token_k_places_after_the_next() -> None:
    # Logits that are certain of the right token, and of nothing else, cost nothing; any other shift would.
    family = _family(2)
    tokens = torch.arange(11)[None] + 3
    labels = shifted_labels(tokens)

    def certain(shift: int) -> Tensor:
        return F.one_hot(F.pad(tokens[:, shift:], (0, shift)), family.model.vocab_size) * 1e3

    right = Output(certain(1), (certain(2), certain(3)))
    assert loss(family.model, right, labels, token_count(labels)).item() == 0
    one_off = Output(certain(1), (certain(1), certain(3)))
    assert loss(family.model, one_off, labels, token_count(labels)).item() > 1


def test_weight_and_depth_divide_the_extra_loss() -> None:
    # DeepSeek-V3, equation 25: lambda / D times the sum over depths; the denominator is the count of the main labels.
    family = _family(2)
    tokens = torch.randint(0, family.model.vocab_size, (1, 9), generator=torch.Generator().manual_seed(1))
    labels = shifted_labels(tokens)
    flat = torch.zeros(1, 9, family.model.vocab_size, dtype=torch.float64)
    value = loss(family.model, Output(flat, (flat, flat)), labels, count=8, mtp_weight=0.5)
    per_token = torch.tensor(float(family.model.vocab_size), dtype=torch.float64).log()
    expected = per_token * (8 + 0.5 / 2 * (7 + 6)) / 8
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
