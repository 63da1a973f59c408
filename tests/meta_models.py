"""Models that transformers builds from a config.json on torch's meta device, which holds shapes and no memory."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares with the models that transformers builds with torch")
transformers = pytest.importorskip("transformers", reason="compares with the models that transformers builds")

READ_AS = {"kimi_k2": "deepseek_v3"}
"""Model types that transformers reads as another one."""


def build(config: dict[str, Any]) -> Any:
    """The causal language model of a config; whatever transformers raises on it."""
    values = copy.deepcopy(config)
    values.pop("auto_map", None)  # names code that comes with a checkpoint; transformers has these models itself
    model_type = values.pop("model_type")
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        built = transformers.AutoConfig.for_model(READ_AS.get(model_type, model_type), **values)
        return transformers.AutoModelForCausalLM.from_config(built)


def count(model: Any) -> int:
    """Parameters; a shared one counts once, and buffers do not."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_mtp(model: Any, layers: int) -> int:
    """Parameters of ``layers`` multi-token-prediction layers; embedding and head are the model's."""
    from transformers.modeling_layers import MtpModel

    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return count(MtpModel(model, layers).layers)


def windows(model: Any) -> list[int | None]:
    """The attention window of each layer, as transformers' masks have it."""
    config = model.config
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]
    return [getattr(config, "sliding_window", None)] * config.num_hidden_layers


def expert_layers(model: Any) -> list[bool]:
    """Whether each layer has experts."""
    decoder = model.get_decoder()
    layers = decoder.layers if hasattr(decoder, "layers") else decoder.h
    return [any("expert" in name for name, _ in layer.named_modules()) for layer in layers]


def rope_parameters(model: Any) -> dict[str, Any] | None:
    """Base and scaling of the rotary positions, with transformers' defaults filled in."""
    found = getattr(model.config, "rope_parameters", None)
    return None if found is None else {key: value for key, value in found.items() if key != "type"}
