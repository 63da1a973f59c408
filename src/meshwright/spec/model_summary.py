"""A model in one line and a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.spec.layer_runs import print_layers
from meshwright.spec.model import Model
from meshwright.spec.parameters import active_parameter_count, parameter_count
from meshwright.units import format_count

__all__ = ["ModelSummary", "summarise"]


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """What is asked first of a model.

    Attributes:
        parameters: trained ones, a tied head counted once, multi-token prediction left out.
        active_parameters: those of them that one token meets.
        mtp_parameters: of the multi-token-prediction layers, which share embedding and head with the model.
        layers: the kinds in order, as runs ("3 x dense", "58 x moe").
        assumed: what the input left out.
    """

    name: str
    parameters: int
    active_parameters: int
    mtp_parameters: int
    layers: tuple[str, ...]
    hidden_size: int
    vocab_size: int
    assumed: tuple[str, ...]

    def __str__(self) -> str:
        """``mixtral-8x7b: 46.7B parameters, 12.9B active; layers 32 x moe, hidden 4096, vocabulary 32000``."""
        counts = f"{format_count(self.parameters)} parameters"
        if self.active_parameters != self.parameters:
            counts += f", {format_count(self.active_parameters)} active"
        if self.mtp_parameters:
            counts += f", {format_count(self.mtp_parameters)} more in multi-token prediction"
        return f"{self.name}: {counts}; layers {', '.join(self.layers)}, hidden {self.hidden_size}, vocabulary {self.vocab_size}"


def summarise(model: Model) -> ModelSummary:
    """Counts and shape of ``model``."""
    parameters = parameter_count(model)
    return ModelSummary(
        name=model.name,
        parameters=parameters,
        active_parameters=active_parameter_count(model),
        mtp_parameters=parameter_count(model, with_mtp=True) - parameters,
        layers=tuple(print_layers(model.layers)),
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        assumed=model.assumed,
    )
