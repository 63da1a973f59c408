"""Whole parameters from the pieces of ranks, and what the reference says about tokens and experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from meshwright.mesh import Mesh
from meshwright.runtime.cut import Holder, Place, local_part
from meshwright.runtime.initialise import initialised_weights
from meshwright.runtime.proof_job import Piece
from meshwright.runtime.proof_pieces import EntryPlaces, joined
from meshwright.runtime.proof_steps import data_rank, global_batches
from meshwright.runtime.reference.loss import IGNORE_INDEX
from runtime.steps.proving import job_of, reference_of
from runtime.steps.small_models import MODELS


def _pieces(family: str, text: str) -> tuple[EntryPlaces, dict[int, dict[str, Piece]], dict]:
    """Every rank's part of random weights, without ZeRO."""
    job = job_of(family, text)
    places, mesh = EntryPlaces(job.model, job.layout), Mesh(job.layout)
    whole = initialised_weights(job.model, 0, torch.float64)
    found = {}
    for rank in range(job.layout.world_size):
        holder = Holder(**{axis: Place(mesh.place(rank, axis), mesh.degree(axis)) for axis in ("tp", "ep", "etp")}, padded_vocab=52)
        found[rank] = {
            name: Piece(first_row=0, values=local_part(tensor, places.parameters[name], job.model, holder).numpy())
            for name, tensor in whole.items()
        }
    return places, found, whole


@pytest.mark.parametrize(("family", "layout"), [("llama", "tp=4 dp=1x1"), ("gpt_oss", "tp=2 sp ep=2 dp=1x2"), ("deepseek", "ep=4 dp=1x4")])
def test_pieces_make_the_whole(family: str, layout: str) -> None:
    layout += " vocab_pad=13" if "tp=4" in layout else " vocab_pad=26" if "tp=2" in layout else " vocab_pad=52"
    places, pieces, whole = _pieces(family, layout)
    found, drift = joined(places, pieces)
    assert drift == 0 and found.keys() == whole.keys()
    for name, tensor in whole.items():
        np.testing.assert_array_equal(found[name], tensor.numpy())


def test_a_row_that_nobody_holds_and_copies_that_differ_are_found() -> None:
    places, pieces, _ = _pieces("llama", "tp=2 dp=1x1 vocab_pad=26")
    name = "layers.1.mlp.down.weight"
    held = pieces[1][name]
    with pytest.raises(ValueError, match=r"no rank holds 12 of 384 entries of layers\.1\.mlp\.down\.weight"):
        joined(places, {**pieces, 1: {**pieces[1], name: Piece(first_row=1, values=held.values[1:])}})
    other = Piece(first_row=0, values=pieces[1]["norm.weight"].values + 1e-3)
    assert joined(places, {**pieces, 1: {**pieces[1], "norm.weight": other}})[1] == pytest.approx(1e-3)


def test_ranks_have_unequal_numbers_of_labels_and_one_has_none() -> None:
    job = job_of("llama", "dp=2x1")
    counts = [[int((batch.labels != IGNORE_INDEX).sum()) for batch in global_batches(job, step)] for step in range(2)]
    assert counts == [[15, 11, 7, 3], [15, 11, 7, 0]]
    assert data_rank(replace(job.layout, dp_replicate=2, dp_shard=4), {"dp_replicate": 1, "dp_shard": 2}) == 6


def test_loads_count_the_copies_of_each_ranks_tokens() -> None:
    job = job_of("qwen3_moe", "tp=2 sp cp=2 ep=2 dp=1x2")
    loads, moe = reference_of(job).loads, MODELS["qwen3_moe"].moe
    assert loads.shape == (3, 2, 2, 8, 8)
    assert (loads.sum(-1) == 16 // 4 * moe.top_k).all()  # every rank routes a quarter of a sequence
    without_sp = reference_of(job_of("qwen3_moe", "tp=2 ep=2 dp=1x2")).loads
    assert (without_sp[:, :, :, 0] == without_sp[:, :, :, 1]).all()  # both tp ranks hold the same tokens
    assert (loads[:, :, :, :4].sum(3) == without_sp[:, :, :, 0]).all()  # which four ranks share otherwise
