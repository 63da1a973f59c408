"""Bytes that a forward keeps, by block."""

import torch

from meshwright.runtime.recompute import recomputed
from meshwright.runtime.saved_bytes import block_of, measured
from meshwright.runtime.scope import in_module


def test_each_storage_counts_once_and_parameters_do_not() -> None:
    x, weight = torch.ones(4, 3), torch.nn.Parameter(torch.ones(5, 3))
    with measured([weight]) as found:
        with in_module("layers.0"), in_module("mlp.up"):
            y = (x @ weight.T).exp()  # keeps x, its own output, and a view of the parameter
        with in_module("layers.1"), in_module("mlp.down"):
            z = (y[:, :2] * y[:, 2:4]).sin()  # two views of what the first block has kept, and its own input
    assert found == {"layers.0": (12 + 20) * 4, "layers.1": 8 * 4}
    assert z.requires_grad


def test_a_recomputed_block_keeps_its_input_only() -> None:
    x, weight = torch.ones(4, 3), torch.nn.Parameter(torch.ones(3))
    with measured([weight]) as found, in_module("layers.2"):
        recomputed(lambda x: ((x * weight).exp() * x).sin(), x)
    assert found == {"layers.2": 12 * 4}


def test_blocks_are_those_of_the_ledger() -> None:
    names = ["layers.12.attention.core", "embedding", "positions", "embedding_norm", "norm", "head", "loss"]
    assert [block_of(name) for name in names] == ["layers.12", "embedding", "embedding", "embedding", "head", "head", "head"]
