"""Masks that depend on what an element is, and not on where it is computed."""

from __future__ import annotations

import math

import pytest
import torch

from meshwright.runtime.dropout import SITES, Dropout, kept

TOKENS, CHANNELS = torch.arange(2048)[:, None], torch.arange(512)


def _mask(rate: float = 0.25, layer: int = 3, step: int = 1, seed: int = 9, site: int = 2) -> torch.Tensor:
    bound = Dropout(rate, seed, step).at(layer, SITES[site], TOKENS, CHANNELS)
    return kept(bound.key, TOKENS, CHANNELS, rate)


def test_a_part_has_the_part_of_the_mask() -> None:
    whole = _mask()
    bound = Dropout(0.25, 9, 1).at(3, SITES[2], TOKENS, CHANNELS)
    tokens, channels = torch.tensor([7, 2000, 31])[:, None], torch.arange(100, 164)
    assert torch.equal(kept(bound.key, tokens, channels, 0.25), whole[tokens, channels])


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_share_of_dropped_elements_is_the_rate(rate: float) -> None:
    mask = _mask(rate)
    deviation = math.sqrt(rate * (1 - rate) / mask.numel())  # of a binomial share
    assert abs((~mask).double().mean().item() - rate) <= 5 * deviation


@pytest.mark.parametrize(
    "other", [{"layer": 4}, {"layer": -1}, {"step": 2}, {"seed": 10}, {"site": 1}], ids=lambda change: next(iter(change))
)
def test_masks_of_different_places_are_independent(other: dict[str, int]) -> None:
    # two independent masks agree in a share (1 - p)^2 + p^2 = 0.625 of their elements
    agreement = (_mask() == _mask(**other)).double().mean().item()
    assert abs(agreement - 0.625) < 5 * math.sqrt(0.625 * 0.375 / 2**20)


def test_neighbours_are_independent() -> None:
    mask = _mask()
    for a, b in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1]), (mask[1:, 1:], mask[:-1, :-1]), (mask[1:, :-1], mask[:-1, 1:])):
        assert abs((a == b).double().mean().item() - 0.625) < 5 * math.sqrt(0.625 * 0.375 / a.numel())


def test_what_stays_is_scaled_so_that_the_mean_stays() -> None:
    x = torch.ones(2048, 512, dtype=torch.float64)
    dropped = Dropout(0.2, 0, 0).at(0, "mlp.down", TOKENS, CHANNELS)(x)
    assert set(dropped.unique().tolist()) == {0.0, 1 / 0.8}
    assert abs(dropped.mean().item() - 1) < 5 * math.sqrt(0.2 / 0.8 / x.numel())
