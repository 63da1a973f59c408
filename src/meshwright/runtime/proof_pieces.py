"""From the pieces that the ranks hold back to whole parameters.

Which entries a rank holds is found out by cutting the entries' own numbers as the parameter itself was cut; so there is no second
description of any cut, and a cut that lost or doubled a row would show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from meshwright.mesh import Mesh
from meshwright.runtime.cut import Holder, Place, local_part
from meshwright.runtime.proof_job import Piece, ProofJob, RankResult, Whole
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.parameters import all_parameters
from meshwright.spec.rules.tensor import padded_vocab

Array = Any


def put_together(job: ProofJob, results: Sequence[RankResult]) -> Whole:
    """See proof_job.assemble."""
    places = EntryPlaces(job.model, job.layout)
    by_step = [joined(places, {result.rank: result.gradients[step] for result in results}) for step in range(job.steps)]
    weights, drift = joined(places, {result.rank: result.weights for result in results})
    norms = [result.gradient_norms for result in results]
    apart = max(max(step) - min(step) for step in zip(*norms, strict=True))
    return Whole(
        losses=tuple(sum(result.losses[step] for result in results) for step in range(job.steps)),
        gradient_norms=norms[0],
        gradients=tuple(gradients for gradients, _ in by_step),
        weights=weights,
        seed=job.seed,
        drift=max(drift, apart, *(of_step for _, of_step in by_step)),
    )


class EntryPlaces:
    """Where the entries of every parameter are, on every rank."""

    def __init__(self, model: Model, layout: Layout) -> None:
        self.model, self.layout, self.mesh = model, layout, Mesh(layout)
        self.parameters = all_parameters(model)
        self._numbers: dict[tuple[str, Holder], Array] = {}

    def numbers(self, name: str, rank: int) -> Array:
        """int64, of the shape of the rank's local part: the flat index in the whole parameter, -1 for padding."""
        parameter, holder = self.parameters[name], self._holder(rank)
        if (name, holder) not in self._numbers:
            whole = torch.arange(1, parameter.size + 1).view(parameter.shape)
            self._numbers[name, holder] = local_part(whole, parameter, self.model, holder).numpy() - 1
        return self._numbers[name, holder]

    def _holder(self, rank: int) -> Holder:
        def place(axis: str) -> Place:
            return Place(self.mesh.place(rank, axis), self.mesh.degree(axis))

        padded = int(padded_vocab(self.model, self.layout))
        return Holder(tp=place("tp"), ep=place("ep"), etp=place("etp"), padded_vocab=padded, vocab_cut=self.layout.vocab)


def joined(places: EntryPlaces, pieces: Mapping[int, Mapping[str, Piece]]) -> tuple[dict[str, Array], float]:
    """Whole parameters by name from every rank's pieces, and the largest difference between two ranks' copies of an entry.

    Raises:
        ValueError: an entry that no rank holds.
    """
    lowest: dict[str, Array] = {}
    highest: dict[str, Array] = {}
    for rank, held in pieces.items():
        for name, piece in held.items():
            numbers = places.numbers(name, rank)[piece.first_row : piece.first_row + len(piece.values)]
            real = numbers >= 0
            if name not in lowest:
                shape = places.parameters[name].shape
                lowest[name], highest[name] = np.full(shape, np.inf), np.full(shape, -np.inf)
            at, values = numbers[real], piece.values[real]
            lowest[name].flat[at] = np.minimum(lowest[name].flat[at], values)
            highest[name].flat[at] = np.maximum(highest[name].flat[at], values)
    drift = 0.0
    for name in lowest:
        missing = int(np.isinf(lowest[name]).sum())
        if missing:
            raise ValueError(f"no rank holds {missing} of {lowest[name].size} entries of {name}, or they are not finite")
        drift = max(drift, float((highest[name] - lowest[name]).max()))
    return highest, drift
