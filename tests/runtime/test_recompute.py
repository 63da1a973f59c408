"""A recomputed layer gives the same gradients and keeps less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.runtime.dropout import Dropout
from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.recompute import recomputed
from meshwright.runtime.reference import model as reference
from meshwright.spec.parameters import all_parameters
from runtime.reference.families import FAMILIES, Family

CHOSEN = [family for family in FAMILIES if family.name in ("llama", "qwen3_moe", "deepseek_v3", "gpt2")]


def _gradients(family: Family, monkeypatch: pytest.MonkeyPatch, recompute: bool) -> tuple[dict[str, Tensor], int]:
    """With the layers recomputed or not: gradients, and how many elements autograd saved in forward, parameters excluded."""
    if recompute:
        plain = reference.decoder_layer
        monkeypatch.setattr(reference, "decoder_layer", lambda *args: recomputed(plain, *args))
    weights = {name: t.requires_grad_() for name, t in initialised_weights(family.model, seed=1, dtype=torch.float64).items()}
    own = {tensor.untyped_storage().data_ptr() for tensor in weights.values()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = torch.arange(24).view(2, 12)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = reference.forward(family.model, weights, tokens, dropout=Dropout(0.1, 0, 0))
        value = reference.loss(family.model, output, tokens, 24)
    trained = [name for name, parameter in all_parameters(family.model).items() if parameter.trained]
    return dict(zip(trained, torch.autograd.grad(value, [weights[name] for name in trained]), strict=True)), sum(saved.values())


@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.name)
def test_recomputation_changes_no_bit_and_saves_less(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, plain_bytes = _gradients(family, monkeypatch, recompute=False)
    gradients, kept_bytes = _gradients(family, monkeypatch, recompute=True)
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)
    assert kept_bytes < plain_bytes / 2
