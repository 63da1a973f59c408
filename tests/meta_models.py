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
